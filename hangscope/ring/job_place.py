"""A process's position in its job, as its launcher's environment variables tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    OPEN_MPI,
    _HYDRA,
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ("PMI_RANK", "PMI_SIZE", "", ""),
)
"""(rank, world size, local rank, local world size) variables of each launcher, most specific first.

If mpirun runs inside a Slurm allocation, srun has started its daemons and the ranks inherit their
Slurm variables, so mpirun's come first. ``PMI_RANK`` alone comes last: srun sets it as well
(``--mpi=pmi2``), and srun's own variables tell more.
"""


@dataclass(frozen=True, slots=True)
class JobPlace:
    """A process's position in its job: its ranks and the sizes they count in."""

    rank: int
    world_size: int
    local_rank: int
    """The global rank if the launcher gives no local rank."""
    local_world_size: int
    """0 if not known."""
    node_rank: int
    attempt: int
    is_numbered: bool = True
    """Whether the launcher gives a local rank."""


def place_from_environment(environ: Mapping[str, str]) -> JobPlace | None:
    """A process's position according to its launcher's variables; None without any."""
    for names in _RANK_VARIABLES:
        rank, world, local_rank, local_world = (integer(environ.get(name)) for name in names)
        if rank is None or world is None or not 0 <= rank < world:
            continue
        if names is _HYDRA and local_rank is None:
            continue
        node = environ.get("GROUP_RANK") or (
            None if names is OPEN_MPI else environ.get("SLURM_NODEID")
        )
        return JobPlace(
            rank=rank,
            world_size=world,
            local_rank=rank if local_rank is None else local_rank,
            local_world_size=local_world or 0,
            node_rank=integer(node) or 0,
            attempt=integer(
                environ.get("TORCHELASTIC_RESTART_COUNT") or environ.get("SLURM_RESTART_COUNT")
            )
            or 0,
            is_numbered=local_rank is not None,
        )
    return None


def integer(text: str | None) -> int | None:
    """A variable's value as an integer; None if it is not set or not a number."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
