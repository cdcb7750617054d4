"""Barriers that name the missing ranks, in real jobs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hangscope.toolkit.barriers.barrier import BarrierTimeout, MissingRank, likely_cause
from hangscope.toolkit.barriers.last_seen import last_seen
from hangscope.toolkit.barriers.meeting import Outcome, StoreGroup
from tests.real_jobs import JobResult, worlds
from tests.toolkit.launcher import processes, world
from tests.toolkit.stores import CountingStore

pytestmark = pytest.mark.xdist_group("barrier")


@pytest.fixture(scope="module")
def job() -> JobResult:
    return world("barrier_job", 4)


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
def test_barrier_does_as_documented(job: JobResult, check: str) -> None:
    job.assert_ok(check, [0, 1, 2, 3])


def test_job_ends_cleanly(job: JobResult) -> None:
    assert job.returncode == 0, job.output


def test_rank_that_died_before_is_missing() -> None:
    result = processes("death_job", worlds(3), arguments=["before"])
    result.assert_ok("dead_rank_is_missing", [0, 1])


def test_rank_that_dies_inside_counts_as_arrived() -> None:
    result = processes("death_job", worlds(4), arguments=["inside"])
    result.assert_ok("dies_inside", [0, 1])
    result.assert_ok("late_after_a_death", [3])


def test_lost_store_is_reported() -> None:
    result = processes("death_job", worlds(3), arguments=["store"])
    result.assert_ok("lost_store_is_said", [1, 2])


def test_last_barrier_of_a_job_whose_rank_0_serves_the_store() -> None:
    result = processes("death_job", worlds(3), arguments=["last"])
    result.assert_ok("nobody_loses_the_store_at_the_end", [0, 1, 2])


def test_missing_rank_is_described_by_its_ring(tmp_path: Path) -> None:
    recording = {"HANGSCOPE": "1", "HANGSCOPE_DIR": str(tmp_path), "HANGSCOPE_MONITOR": "0"}
    result = processes("ring_job", [env | recording for env in worlds(2)])
    result.assert_ok("last_seen", [0])
    # The barrier itself is part of the recording, for whoever looks at the waiting rank.
    from hangscope.trace.rings.read import read_ring

    assert read_ring(tmp_path / "rank_0.ring").facts.rank == 0


def test_unreadable_ring_never_hides_the_timeout(tmp_path: Path) -> None:
    (tmp_path / "rank_1.ring").write_bytes(b"HSRING but nothing else")
    assert last_seen(1, {"HANGSCOPE_DIR": str(tmp_path)}) is None
    assert last_seen(2, {"HANGSCOPE_DIR": str(tmp_path)}) is None
    assert last_seen(1, {}) is None


def test_timeout_survives_pickling() -> None:
    """Errors travel between processes: torchrun's error files, multiprocessing, futures."""
    error = BarrierTimeout("gone", [2], [0, 1], {2: MissingRank(2, "host")}, "save", 3.0)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.missing, again.arrived) == ("gone", [2], [0, 1])
    assert again.details[2].host == "host"


@pytest.mark.parametrize(
    ("missing", "size", "details", "words"),
    [
        ((3,), 8, {3: MissingRank(3, "", "ended (signal, signal 9)")}, "ended before"),
        ((3, 4, 5, 6), 8, {}, "only some ranks take"),
        ((3,), 8, {}, "look at its log"),
    ],
)
def test_likely_cause_follows_from_what_the_missing_ranks_left(
    missing: tuple[int, ...], size: int, details: dict[int, MissingRank], words: str
) -> None:
    store_group = StoreGroup(CountingStore(), "c", tuple(range(size)), 0)
    assert words in likely_cause(store_group, Outcome(False, missing=missing), details)


def test_node_that_is_gone_is_reported() -> None:
    store_group = StoreGroup(CountingStore(), "c", tuple(range(16)), 0)
    hosts = {rank: f"node1 (pid {rank})" for rank in range(8, 16)}
    text = likely_cause(store_group, Outcome(False, missing=tuple(range(8, 16)), hosts=hosts), {})
    assert "all of them run on node1" in text
