"""Variables that real launchers set: recorded from Slurm 22.05, Open MPI 4.1 and MPICH 4.0."""

from __future__ import annotations

import pytest

from hangscope.recording.enable import is_launch
from hangscope.recording.identity import run_id_from_environment
from hangscope.ring.job_place import place_from_environment
from hangscope.toolkit.launching.master import master_address, master_port
from hangscope.toolkit.launching.world import get_world_info

_NODES = {"SLURM_JOB_ID": "43", "SLURM_JOB_NODELIST": "hz[0-1]"}


def _open_mpi(rank: int, local: int) -> dict[str, str]:
    numbers = {"RANK": rank, "SIZE": 4, "LOCAL_RANK": local, "LOCAL_SIZE": 2, "NODE_RANK": local}
    named = {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in numbers.items()}
    ids = {"OMPI_MCA_ess_base_jobid": "4082696193", "PMIX_NAMESPACE": "4082696193"}
    return {**named, **ids, "PMIX_RANK": str(rank)}


def _slurm(rank: int, world: int, local: int, node: int, per_node: str) -> dict[str, str]:
    numbers = {"PROCID": rank, "NTASKS": world, "LOCALID": local, "NODEID": node}
    named = {f"SLURM_{name}": str(number) for name, number in numbers.items()}
    return {**named, "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": per_node}


OPEN_MPI_IN_SLURM = [
    # On the first node mpirun starts the ranks itself; on the second, srun starts mpirun's daemon.
    {**_NODES, **_open_mpi(0, 0), "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2"},
    {**_NODES, **_open_mpi(1, 1), "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2"},
    {**_NODES, **_open_mpi(2, 0), **_slurm(0, 1, 0, 0, "1"), "SLURM_STEP_NODELIST": "hz1"},
    {**_NODES, **_open_mpi(3, 1), **_slurm(0, 1, 0, 0, "1"), "SLURM_STEP_NODELIST": "hz1"},
]
HYDRA_IN_SLURM = [
    {
        **_NODES,
        **_slurm(rank // 2, 4, 0, rank // 2, "1(x2)"),
        "PMI_RANK": str(rank),
        "PMI_SIZE": "4",
        "MPI_LOCALRANKID": str(rank % 2),
        "MPI_LOCALNRANKS": "2",
    }
    for rank in range(4)
]
SRUN_PMI2 = [
    {
        **_NODES,
        **_slurm(rank, 4, rank % 2, rank // 2, "2(x2)"),
        "SLURM_NTASKS_PER_NODE": "2",
        "PMI_RANK": str(rank),
        "PMI_SIZE": "4",
        "PMI_JOBID": "43.0",
    }
    for rank in range(4)
]
HYDRA = [
    {k: v for k, v in env.items() if not k.startswith("SLURM")} | {"MASTER_PORT": "29500"}
    for env in HYDRA_IN_SLURM
]


@pytest.mark.parametrize("ranks", [OPEN_MPI_IN_SLURM, HYDRA_IN_SLURM, SRUN_PMI2, HYDRA])
def test_ranks_know_their_position_and_agree_on_the_run_id(ranks: list[dict[str, str]]) -> None:
    places = [place_from_environment(env) for env in ranks]
    assert [
        (p.rank, p.world_size, p.local_rank, p.local_world_size, p.is_numbered)
        for p in places
        if p is not None
    ] == [(rank, 4, rank % 2, 2, True) for rank in range(4)]
    assert len({run_id_from_environment(env) for env in ranks}) == 1


def test_pmi_without_local_ranks_is_the_last_resort() -> None:
    place = place_from_environment({"PMI_RANK": "3", "PMI_SIZE": "4"})
    assert place is not None
    assert (place.rank, place.world_size, place.is_numbered) == (3, 4, False)


@pytest.mark.parametrize("ranks", [OPEN_MPI_IN_SLURM, SRUN_PMI2])
def test_toolkit_agrees_on_rank_and_address(ranks: list[dict[str, str]]) -> None:
    infos = [get_world_info(env) for env in ranks]
    assert [(i.rank, i.local_rank, i.world_size, i.local_world_size) for i in infos] == [
        (rank, rank % 2, 4, 2) for rank in range(4)
    ]
    assert {master_address(env, 4, 2) for env in ranks} == {"hz0"}
    assert len({master_port(env) for env in ranks}) == 1


@pytest.mark.parametrize(
    ("command", "program", "starts_ranks"),
    [
        ("python /env/bin/torchrun --nproc-per-node 2 train.py", 2, True),
        ("python -u /env/bin/accelerate-launch train.py", 3, True),
        ("python -m torch.distributed.run train.py", 3, True),
        ("python -X dev -m accelerate.commands.launch train.py", 5, True),
        ("python train.py --strategy deepspeed", 2, False),
        ("python -m train accelerate", 3, False),
        ("python -m pytest torchrun", 3, False),
    ],
)
def test_launcher_is_recognised_by_program_not_by_arguments(
    command: str, program: int, starts_ranks: bool
) -> None:
    words = command.split()
    assert is_launch(words, len(words) - program) is starts_ranks
