"""Barriers that name the missing, in real jobs."""

from __future__ import annotations

import pytest

from tests.toolkit.launcher import JobResult, processes, static_world, torchrun


@pytest.fixture(scope="module")
def job() -> JobResult:
    return torchrun("barrier_job", 4)


@pytest.mark.parametrize(
    "check",
    [
        "all_return",
        "nobody_leaves_before_the_last_has_come",
        "missing_named",
        "repeats_after_a_timeout",
        "latecomer_raises_too",
        "repeats_after_a_latecomer",
        "subgroup",
        "subgroup_missing_named_by_global_rank",
        "issues_no_collective",
        "other_threads_may_use_the_store_meanwhile",
        "keys_do_not_pile_up",
        "after_reinitialisation",
        "wrong_timeouts_are_refused",
    ],
)
def test_barrier(job: JobResult, check: str) -> None:
    job.assert_ok(check, [0, 1, 2, 3])


def test_job_ends_cleanly(job: JobResult) -> None:
    assert job.returncode == 0, job.output


def test_rank_that_died_before_is_missing() -> None:
    result = processes("death_job", static_world(3), arguments=["before"])
    result.assert_ok("dead_rank_is_missing", [0, 1])


def test_rank_that_dies_inside_counts_as_arrived() -> None:
    result = processes("death_job", static_world(4), arguments=["inside"])
    result.assert_ok("dies_inside", [0, 1])
    result.assert_ok("late_after_a_death", [3])


def test_lost_store_is_said() -> None:
    result = processes("death_job", static_world(3), arguments=["store"])
    result.assert_ok("lost_store_is_said", [1, 2])


def test_last_barrier_of_a_job_whose_rank_0_serves_the_store() -> None:
    result = processes("death_job", static_world(3), arguments=["last"])
    result.assert_ok("nobody_loses_the_store_at_the_end", [0, 1, 2])
