"""Joining and leaving a job: torchrun, Slurm, Open MPI, one rank alone, one rank missing."""

from __future__ import annotations

import pytest

from tests.real_jobs import JobResult, worlds
from tests.toolkit.launcher import alone_job, processes, world
from tools.ports import free_port

pytestmark = pytest.mark.xdist_group("launch")


@pytest.fixture(scope="module")
def job() -> JobResult:
    return world("launch_job", 8)


@pytest.mark.parametrize(
    "check",
    [
        "world_info",
        "arguments_that_cannot_be_right_start_nothing",
        "mesh_that_differs_between_ranks_is_refused_by_all",
        "named_mesh",
        "seeds_carry_the_pipeline_offset",
        "collectives_work_in_every_dimension",
        "second_init_is_refused",
        "environment_is_configured",
        "destroy_and_start_again",
        "destroy_never_hides_the_first_error",
        "destroy_never_hangs",
    ],
)
def test_launch_does_as_documented(job: JobResult, check: str) -> None:
    job.assert_ok(check, list(range(8)))


def test_missing_rank_at_init_is_named() -> None:
    places = worlds(3, started=[0, 1])
    result = processes("join_job", [w | {"EXPECT_MISSING": "2"} for w in places])
    result.assert_ok("missing_rank_at_init_named", [0, 1])


def test_slurm_job_agrees_on_address_and_port_without_communication() -> None:
    shared = {
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_TASKS_PER_NODE": "2",
        "SLURM_NODEID": "0",
    }
    ranks = [shared | {"SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)} for r in range(2)]
    result = processes("join_job", ranks)
    result.assert_ok("joins", [0, 1])
    assert result.values[0]["port"] == result.values[1]["port"]
    assert result.values[0]["addr"] == "localhost"


def test_open_mpi_job_joins() -> None:
    shared = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    shared["PMIX_NAMESPACE"] = f"prterun-{free_port()}@1"
    ranks = [
        shared
        | {"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_LOCAL_RANK": str(r)}
        | {"SLURM_PROCID": ""}
        for r in range(2)
    ]
    for r, env in enumerate(ranks):
        env["RANK"] = str(r)  # only for the report's file name
        env["WORLD_SIZE"] = "2"
    processes("join_job", ranks).assert_ok("joins", [0, 1])


@pytest.fixture(scope="module")
def alone() -> JobResult:
    return alone_job()


@pytest.mark.parametrize(
    "check",
    [
        "no_op_with_a_warning_when_nothing_is_initialised",
        "training_warmup_works_alone",
        "world_of_one_needs_no_group",
        "world_of_one_with_a_mesh",
    ],
)
def test_world_size_1_works_without_cuda(alone: JobResult, check: str) -> None:
    alone.assert_ok(check, [0])
