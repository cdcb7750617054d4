"""Rank and world size of this process, whichever launcher started it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

# mpirun inside a Slurm allocation has srun start its daemons, and ranks inherit their variables.
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_LOCAL_WORLD_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_LAUNCHERS = (
    ("TORCHELASTIC_RUN_ID", "torchrun"),
    ("OMPI_COMM_WORLD_RANK", "openmpi"),
    ("SLURM_PROCID", "slurm"),
    ("RANK", "environment"),
)


@dataclass(frozen=True, slots=True)
class WorldInfo:
    """This process's position in the job.

    ``local_rank`` and ``local_world_size`` count the processes on this node. ``launcher`` is
    ``torchrun``, ``slurm``, ``openmpi``, ``environment`` (RANK set by something else) or ``none``.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    launcher: str = field(default="none", compare=False)


def get_world_info(environ: Mapping[str, str] | None = None) -> WorldInfo:
    """Read rank and sizes from what torchrun, Slurm's srun or Open MPI's mpirun set.

    Each value is taken from the first launcher that gives it, torchrun's names first, so a job
    script that exports ``WORLD_SIZE`` itself and uses srun works as well. Without any of them, the
    world has one rank. The environment is only read.

    Raises
    ------
    ValueError
        A value is not an integer or out of range, or only one of rank and world size is given. The
        message names the variable.
    """
    env = os.environ if environ is None else environ
    rank = _first(env, _RANK)
    world_size = _first(env, _WORLD_SIZE)
    if rank is None and world_size is not None and world_size[1] > 1:
        raise ValueError(
            f"{world_size[0]}={world_size[1]} but no rank is set ({', '.join(_RANK)}): "
            "start the job with torchrun, srun or mpirun, or set RANK too"
        )
    if rank is not None and world_size is None:
        raise ValueError(
            f"{rank[0]}={rank[1]} but no world size is set ({', '.join(_WORLD_SIZE)}): "
            "start the job with torchrun, srun or mpirun, or set WORLD_SIZE too"
        )
    rank_name, rank_value = rank or ("RANK", 0)
    size_name, size_value = world_size or ("WORLD_SIZE", 1)
    if size_value < 1:
        raise ValueError(f"{size_name}={size_value}: a world has at least one rank")
    if not 0 <= rank_value < size_value:
        raise ValueError(
            f"{rank_name}={rank_value} is outside 0..{size_value - 1} ({size_name}={size_value})"
        )
    local_size_name, local_size = _local_world_size(env, size_value)
    if not 1 <= local_size <= size_value:
        raise ValueError(f"{local_size_name}={local_size} is outside 1..{size_value}")
    local_name, local_rank = _first(env, _LOCAL_RANK) or ("LOCAL_RANK", rank_value % local_size)
    if not 0 <= local_rank < local_size:
        raise ValueError(
            f"{local_name}={local_rank} is outside 0..{local_size - 1} "
            f"({local_size_name}={local_size})"
        )
    return WorldInfo(rank_value, local_rank, size_value, local_size, _launcher(env))


def export_world(info: WorldInfo, environ: MutableMapping[str, str] | None = None) -> None:
    """Set torchrun's variables if they are unset, so that ``env://`` works under srun."""
    env = os.environ if environ is None else environ
    env.setdefault("RANK", str(info.rank))
    env.setdefault("LOCAL_RANK", str(info.local_rank))
    env.setdefault("WORLD_SIZE", str(info.world_size))
    env.setdefault("LOCAL_WORLD_SIZE", str(info.local_world_size))


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, int] | None:
    for name in names:
        text = env.get(name, "").strip()
        if text:
            try:
                return name, int(text)
            except ValueError:
                raise ValueError(f"{name}={text!r} is not an integer") from None
    return None


def _launcher(env: Mapping[str, str]) -> str:
    return next((launcher for name, launcher in _LAUNCHERS if env.get(name)), "none")


def _local_world_size(env: Mapping[str, str], world_size: int) -> tuple[str, int]:
    found = _first(env, _LOCAL_WORLD_SIZE)
    if found is not None:
        return found
    per_node = slurm_tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    per_node = per_node or slurm_tasks_per_node(env.get("SLURM_TASKS_PER_NODE", ""))
    node = env.get("SLURM_NODEID", "")
    if per_node and sum(per_node) == world_size and node.isdigit() and int(node) < len(per_node):
        return "SLURM_TASKS_PER_NODE", per_node[int(node)]
    given = _first(env, ("SLURM_NTASKS_PER_NODE",)) if env.get("SLURM_PROCID") else None
    if given is not None:
        return given[0], min(given[1], world_size)
    # One node is the only safe guess: a local rank that is too high for the node's devices raises
    # an error, whereas a guess of 0 would silently put every rank on the same device.
    return "LOCAL_WORLD_SIZE", world_size


def slurm_tasks_per_node(text: str) -> list[int]:
    """``"2(x3),1"`` means ``[2, 2, 2, 1]``; anything unreadable gives an empty list."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not match:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
