"""Starts and ends a distributed job; failures are reported in time and name the ranks."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from hangscope.toolkit.barriers import meeting, store_incarnation
from hangscope.toolkit.barriers.barrier import BarrierTimeout, barrier, check_timeout, timeout_error
from hangscope.toolkit.bounded import TookTooLong, bounded
from hangscope.toolkit.environments.environment import configure_environment
from hangscope.toolkit.launching.master import master_address, master_port
from hangscope.toolkit.launching.mesh import resolve_mesh
from hangscope.toolkit.launching.world import WorldInfo, export_world, get_world_info
from hangscope.toolkit.ranks import name_ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed.device_mesh import DeviceMesh

INIT_TIMEOUT_S = 300.0
"""Time for all ranks to arrive: image pulls and imports on thousands of nodes take minutes."""
COLLECTIVE_TIMEOUT_S = 600.0
"""PyTorch's own default for NCCL."""
DESTROY_TIMEOUT_S = 30.0


def init_distributed(
    mesh: Mapping[str, int] | None = None,
    backend: str | None = None,
    init_timeout: float = INIT_TIMEOUT_S,
    timeout: float = COLLECTIVE_TIMEOUT_S,
    seed: int | None = 42,
) -> DeviceMesh | None:
    """Join the job: environment, device, rendezvous, process group, mesh, seeds, in that order.

    Every phase is bounded by ``init_timeout`` and ends with all ranks or with an exception that
    names the missing ones. In a world of one without a ``mesh``, no process group is created.
    Nothing here needs CUDA.

    Parameters
    ----------
    mesh:
        Sizes of ``pp``, ``dp_replicate``, ``dp_shard``, ``ep``, ``tp``; see `resolve_mesh`.
    backend:
        As for ``init_process_group``; ``None`` is NCCL for CUDA and Gloo for the CPU.
    init_timeout:
        Seconds for each phase of joining.
    timeout:
        Seconds for each collective afterwards.
    seed:
        Seeds torch, CUDA, ``random`` and numpy with ``seed`` plus the pipeline stage; ``None``
        leaves them alone.

    Returns
    -------
    DeviceMesh or None
        The mesh, or ``None`` if none was asked for.

    Raises
    ------
    BarrierTimeout
        Ranks are missing; ``.missing`` lists them.
    ValueError
        The environment or an argument is invalid; nothing was started.
    RuntimeError
        A process group already exists.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    check_timeout(init_timeout, "init_timeout")
    check_timeout(timeout, "timeout")
    world = get_world_info()
    sizes = resolve_mesh(mesh, world.world_size) if mesh is not None else None
    if world.world_size == 1 and sizes is None and backend is None:
        _set_device(world, wanted=None)
        seed_everything(seed)
        return None
    if not dist.is_available():
        raise RuntimeError("this torch was built without torch.distributed")
    if dist.is_initialized():
        raise RuntimeError("a process group exists already: call destroy_distributed() first")
    configure_environment(warn=world.local_rank == 0)  # once per node is enough
    device_type = _set_device(world, wanted=backend)
    backend = backend or ("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo")
    store = rendezvous_store(world, init_timeout)
    if world.world_size > 1:
        wanted = f"backend={backend} mesh={sizes} timeout={timeout:g} seed={seed}"
        # If the store has served before, torch must not find the addresses of that time.
        own = _meet_everybody(store, world, init_timeout, wanted)
        store = PrefixStore(own, store)
    dist.init_process_group(
        backend,
        store=store,
        rank=world.rank,
        world_size=world.world_size,
        timeout=timedelta(seconds=timeout),
    )
    device_mesh = None
    if sizes is not None:
        from torch.distributed.device_mesh import init_device_mesh

        device_mesh = init_device_mesh(
            device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )
    barrier(init_timeout, "process group" if sizes is None else "process group and DeviceMesh")
    stage = 0
    if device_mesh is not None and sizes is not None and "pp" in sizes:
        stage = int(device_mesh["pp"].get_local_rank())
    seed_everything(seed, stage)
    return device_mesh


def destroy_distributed(timeout: float = DESTROY_TIMEOUT_S) -> bool:
    """Leave the job, without hanging and without hiding the error that caused it.

    Teardown can block (a peer is gone, work is pending) and can raise. After ``timeout`` seconds it
    is left to a background thread. Its exception is raised here only if no other exception is
    propagating; otherwise it becomes a warning.

    Returns
    -------
    bool
        Whether the process groups are destroyed (or there were none).
    """
    check_timeout(timeout)
    first = sys.exc_info()[1]
    torch_distributed = sys.modules.get("torch.distributed")
    if torch_distributed is None or not torch_distributed.is_available():
        return True
    dist: Any = torch_distributed
    if not dist.is_initialized():
        return True
    try:
        bounded(dist.destroy_process_group, timeout, "destroy")
    except TookTooLong:
        warnings.warn(
            f"hangscope.destroy_distributed: destroy_process_group did not return within "
            f"{timeout:g} s; a peer is gone or work is pending. Going on without it.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    except Exception as error:
        if first is None:
            raise
        warnings.warn(
            f"hangscope.destroy_distributed: {type(error).__name__}: {error} "
            f"(while ending because of {type(first).__name__})",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def seed_everything(seed: int | None, stage: int = 0) -> None:
    """Seed torch, every CUDA device, ``random`` and numpy with ``seed + stage``.

    Replicas get the same seed, pipeline stages different ones. ``None`` does nothing.
    """
    if seed is None:
        return
    import torch

    torch.manual_seed(seed + stage)  # also seeds every CUDA device, even before CUDA is initialised
    random.seed(seed + stage)
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed((seed + stage) % 2**32)


def _set_device(world: WorldInfo, wanted: str | None) -> str:
    """Bind this process to its device before anything creates a communicator on device 0."""
    import torch

    uses_cuda = torch.cuda.is_available() and (wanted is None or "nccl" in wanted)
    if not uses_cuda:
        if wanted is not None and "nccl" in wanted:
            raise ValueError(f"backend={wanted!r} needs CUDA, and this process sees none")
        return "cpu"
    count = torch.cuda.device_count()
    if world.local_rank >= count:
        raise ValueError(
            f"LOCAL_RANK={world.local_rank}, but this process sees {count} device(s) "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}): start at "
            "most as many processes per node as it has devices, and let each see all of them"
        )
    torch.cuda.set_device(world.local_rank)
    return "cuda"


def rendezvous_store(world: WorldInfo, timeout_s: float) -> Store:
    """A client of the job's store, which rank 0 serves unless torchrun does."""
    from torch._C._distributed_c10d import HashStore, TCPStore

    if world.world_size == 1:
        return HashStore()
    host = master_address(os.environ, world.world_size, world.local_world_size)
    port = master_port(os.environ)
    export_world(world)
    os.environ.setdefault("MASTER_ADDR", host)
    os.environ.setdefault("MASTER_PORT", str(port))
    serve = world.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        # Do not wait for the workers here: the meeting that follows can tell who is missing.
        return TCPStore(
            host,
            port,
            world.world_size,
            serve,
            timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        raise _unreachable(error, host, port, serve, world) from error


def _meet_everybody(store: Store, world: WorldInfo, timeout_s: float, wanted: str) -> str:
    """Wait for all ranks, compare their arguments, and return a store prefix unique to them."""
    shared = cast(meeting.Store, store)
    incarnation = store_incarnation.join(shared, world.rank)
    everybody = tuple(range(world.world_size))
    store_group = meeting.StoreGroup(
        shared, "hangscope/rendezvous", everybody, world.rank, "default", incarnation
    )
    outcome = meeting.meet(store_group, timeout_s=timeout_s, say=wanted, compare=True)
    if not outcome.met:
        error = timeout_error(store_group, outcome, timeout_s, "rendezvous")
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise BarrierTimeout(
            f"{error} Checked at {where} with WORLD_SIZE={world.world_size}: is that the same on "
            "every node?",
            error.missing,
            error.arrived,
            error.details,
            error.reason,
            error.waited_s,
        )
    if len(outcome.said) > 1:
        views = "; ".join(f"{name_ranks(ranks)}: {said}" for said, ranks in outcome.said.items())
        raise ValueError(f"init_distributed: the ranks were called differently: {views}")
    return f"hangscope/{incarnation}/{outcome.generation}"


def _unreachable(
    error: RuntimeError, host: str, port: int, serve: bool, world: WorldInfo
) -> Exception:
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    if serve:
        return RuntimeError(
            f"rank 0 cannot serve the job's store on port {port}: {line}. Is another job using "
            "it? Give every job a MASTER_PORT of its own."
        )
    return BarrierTimeout(
        f"rank {world.rank} cannot reach the job's store at {host}:{port}: {line}. Is rank 0 "
        "running, and do all ranks agree on MASTER_ADDR and MASTER_PORT?",
        missing=[0],
        arrived=[world.rank],
        reason="rendezvous",
    )
