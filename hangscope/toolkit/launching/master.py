"""The master address and port, on which all ranks agree without communication."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from hangscope.toolkit.launching.hostlist import expand_hostlist

PORTS = range(15000, 30000)
"""Below the range of ephemeral ports."""


def master_address(env: Mapping[str, str], world_size: int, local_world_size: int) -> str:
    """The host of rank 0.

    ``MASTER_ADDR`` if set; under Slurm the first host of the step; this host if all ranks are on
    one node.

    Raises
    ------
    ValueError
        There are several nodes and nothing names the first.
    """
    given = env.get("MASTER_ADDR", "").strip()
    if given:
        return given
    by_mpirun = bool(env.get("OMPI_COMM_WORLD_RANK"))  # then a Slurm step is only mpirun's daemon
    step = "" if by_mpirun else env.get("SLURM_STEP_NODELIST")
    nodes = step or env.get("SLURM_JOB_NODELIST")
    if nodes and (by_mpirun or env.get("SLURM_PROCID")):
        return expand_hostlist(nodes)[0]
    if local_world_size == world_size:
        return "127.0.0.1"
    raise ValueError(
        f"MASTER_ADDR is not set, and only {local_world_size} of {world_size} ranks are on this "
        "node: set MASTER_ADDR to the host of rank 0 on every node"
    )


def master_port(env: Mapping[str, str]) -> int:
    """The port on that host.

    ``MASTER_PORT`` if set; else one derived from the job's id, so that all ranks of a job get the
    same port and two jobs on one node get different ones. A free port picked by each rank would
    differ from rank to rank.

    Raises
    ------
    ValueError
        ``MASTER_PORT`` is not a valid port, or nothing identifies the job.
    """
    given = env.get("MASTER_PORT", "").strip()
    if given:
        if not given.isdigit() or not 0 < int(given) < 65536:
            raise ValueError(f"MASTER_PORT={given!r} is not a port (1 to 65535)")
        return int(given)
    job = job_identity(env)
    if not job:
        raise ValueError(
            "MASTER_PORT is not set and no job id is known from which all ranks could derive the "
            "same one: set MASTER_PORT, or start the job with torchrun"
        )
    digest = hashlib.sha256(job.encode()).digest()
    return PORTS[int.from_bytes(digest[:8], "big") % len(PORTS)]


def job_identity(env: Mapping[str, str]) -> str:
    """An identity shared by all ranks of this job and by no other job; empty if there is none."""
    if env.get("SLURM_JOB_ID") and not env.get("OMPI_COMM_WORLD_RANK"):
        # Steps of one allocation may run at the same time.
        return f"slurm:{env['SLURM_JOB_ID']}.{env.get('SLURM_STEP_ID', '')}"
    for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"):
        if env.get(name):
            return f"openmpi:{env[name]}"
    return ""
