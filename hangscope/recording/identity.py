"""This process's rank in its job, the run id, and the run directory.

All ranks of a job must arrive at the same run id and directory without communication: no process
group exists yet.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from hangscope.ring.job_place import OPEN_MPI, JobPlace, integer
from hangscope.ring.process_identity import boot_id, environment_of, pid_namespace, start_ticks
from hangscope.ring.run_secret import RunSecret
from hangscope.ring.writer import RingIdentity


def place_from_arguments(rank: int, world_size: int, environ: Mapping[str, str]) -> JobPlace:
    """The position of a rank that is known only from ``init_process_group`` (Lightning, say).

    The launcher may still give a local rank, which is what every node needs for its monitor. It
    usually does not tell how many ranks the node has.
    """
    local_rank = integer(environ.get("LOCAL_RANK"))
    node_rank = integer(environ.get("GROUP_RANK") or environ.get("NODE_RANK")) or 0
    local_world = integer(environ.get("LOCAL_WORLD_SIZE"))
    if local_rank is None or not 0 <= local_rank <= rank:
        return JobPlace(rank, world_size, rank, local_world or 0, 0, 0, is_numbered=False)
    if not local_world and node_rank > 0:
        local_world = (rank - local_rank) // node_rank
    return JobPlace(rank, world_size, local_rank, local_world or 0, node_rank, 0)


def run_id_from_environment(environ: Mapping[str, str]) -> str:
    """A name for the run on which all its ranks agree.

    The launcher's own id if it has one. Otherwise the rendezvous address or, if all ranks share one
    launcher process (one node), that process's identity.
    """
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic and elastic != "none":
        return _clean(elastic)
    namespace = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid")
    if namespace and environ.get(OPEN_MPI[0]):
        return _clean(f"mpirun-{namespace}")  # a step of Slurm is one of its daemons
    slurm = environ.get("SLURM_JOB_ID")
    if slurm:
        step = environ.get("SLURM_STEP_ID", "")
        return _clean(f"slurm-{slurm}" + (f".{step}" if step else ""))
    address = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
    nodes = integer(environ.get("GROUP_WORLD_SIZE")) or 1
    world = integer(environ.get("WORLD_SIZE")) or 1
    local = integer(environ.get("LOCAL_WORLD_SIZE")) or world
    if nodes == 1 and local == world and elastic and not _has_own_rendezvous(environ):
        ticks = start_ticks(os.getppid())
        return f"run-{os.getppid()}-{ticks}"
    digest = hashlib.blake2b(address.encode(), digest_size=4).hexdigest()
    return f"run-{_clean(environ.get('MASTER_PORT', '') or '0')}-{digest}"


def _has_own_rendezvous(environ: Mapping[str, str]) -> bool:
    """Whether this is a helper of a rank, and the helpers of all ranks form a world of their own.

    Ranks that write checkpoints in separate processes start one each. These processes share no
    parent and have inherited the launcher's variables from their rank, except for the port.
    """
    parent = environment_of(f"/proc/{os.getppid()}")
    port = environ.get("MASTER_PORT", "")
    return "TORCHELASTIC_RUN_ID" in parent and parent.get("MASTER_PORT") != port


def run_directory(environ: Mapping[str, str], run_id: str) -> tuple[Path, bool]:
    """The run directory, and whether it is HangScope's own choice (then ``latest`` points to it).

    Ranks may have changed their working directory before importing torch. The launcher has not, so
    its working directory is the one on which all ranks of a node agree.
    """
    given = environ.get("HANGSCOPE_DIR")
    base = Path.cwd()
    if environ.get("TORCHELASTIC_RUN_ID"):
        try:
            base = Path(os.readlink(f"/proc/{os.getppid()}/cwd"))
        except OSError:
            pass
    if given:
        return base / given, False
    return base / "hangscope-runs" / run_id, True


def ring_identity(
    place: JobPlace, run_id: str, *, timeout_s: float, heartbeat_interval_s: float
) -> RingIdentity:
    """Everything the ring's header says about this process."""
    process = (boot_id(), pid_namespace(), os.getpid(), start_ticks(os.getpid()))
    return RingIdentity(
        run_id=run_id,
        rank=place.rank,
        world_size=place.world_size,
        attempt=place.attempt,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size,
        node_rank=place.node_rank,
        host=socket.gethostname(),
        boot_id=process[0],
        torch_version=_torch_version(),
        python_version=platform.python_version(),
        cwd=os.getcwd(),
        pid=process[2],
        parent_pid=os.getppid(),
        start_ticks=process[3],
        pid_namespace=process[1],
        timeout_s=timeout_s,
        heartbeat_interval_s=heartbeat_interval_s,
        seal=RunSecret.of(os.environ).seal(run_id, place.attempt, *process),
    )


def _torch_version() -> str:
    import sys

    torch = sys.modules.get("torch")
    return str(getattr(torch, "__version__", ""))


def _clean(text: str) -> str:
    """A text fit for a directory name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80] or "run"
