"""Ranks that wait in the job's key-value store for a key that another rank has to set."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame, Phase, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job


def _in_store(job: Job, rank: int, key: str = "ckpt/7", at_s: float = 1.0) -> None:
    since_ns = START + int(at_s * SECOND)
    job.rank(rank, phases=(Phase("store.get", since_ns, key),), alive=True)


def _asleep(job: Job, rank: int) -> None:
    stack = (Frame("read_shard", "/home/me/train.py", 41),)
    job.rank(rank, alive=True, threads=(ThreadStack("MainThread", True, stack, START + SECOND),))


def _looked_at(job: Job) -> Diagnosis:
    for rank in job.facts:
        job.rank(rank, observed_ns=START + 60 * SECOND)
    return diagnose(job.trace())


def test_rank_waiting_for_a_store_key_is_a_victim_of_its_setter() -> None:
    job = Job(4, live=True)
    job.steps(3)
    _in_store(job, 0)
    _asleep(job, 3)
    for rank in (1, 2):
        job.op(rank, done=False)
    found = _looked_at(job)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))
    assert found.confidence.value == "likely"
    assert 0 in found.findings[0].victims
    assert any("'ckpt/7'" in line for line in found.findings[0].evidence)


def test_only_absent_rank_is_accused() -> None:
    job = Job(4, live=True)
    job.steps(3)
    _in_store(job, 2)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    found = _looked_at(job)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    # It is the one that did not come; that somebody else has not set its key is as well possible.
    assert found.confidence.value == "likely"
    assert any("rank 2 waits in store.get" in line for line in found.findings[0].evidence)


def test_ranks_waiting_in_the_store_wait_for_the_absent_one() -> None:
    job = Job(4, live=True)
    job.steps(3)
    for rank in (0, 1, 3):
        _in_store(job, rank, "ckpt/7/last_member")
    _asleep(job, 2)
    found = _looked_at(job)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "likely"
    assert "store.get 'ckpt/7/last_member'" in found.summary


def test_rank_waiting_for_its_own_key_is_named() -> None:
    job = Job(4, live=True)
    job.steps(3)
    for rank in (0, 1, 3):
        _in_store(job, rank, "r2/4")
    _in_store(job, 2, "a key that nobody sets")
    found = _looked_at(job)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_few_ranks_in_the_store_are_no_rendezvous() -> None:
    job = Job(4, live=True)
    job.steps(3)
    _in_store(job, 0)
    for rank in (1, 2, 3):
        job.rank(rank, cpu_busy=0.9, alive=True)
    assert _looked_at(job).verdict.value == "healthy"


def test_short_store_wait_is_no_hang() -> None:
    job = Job(4, live=True, timeout_s=10.0)
    job.steps(3)
    for rank in (0, 1, 3):
        _in_store(job, rank, at_s=55.0)
    job.rank(2, cpu_busy=0.9, alive=True)
    assert _looked_at(job).verdict.value == "healthy"


def test_rank_waiting_for_those_in_the_store_has_not_set_their_key() -> None:
    job = Job(3, live=True)
    job.steps(3)
    for rank in (1, 2):
        _in_store(job, rank, "config/2")
    job.op(0, "barrier", size=(), done=False)
    found = _looked_at(job)
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))
    assert found.confidence.value == "likely"
    assert "Rank 0 has not set what ranks 1, 2 wait for in store.get 'config/2'" in found.summary
    assert any("rank 0 waits in barrier" in line for line in found.findings[0].evidence)


def test_one_rank_in_the_store_with_many_waiters_is_accused_despite_another_key() -> None:
    job = Job(4, live=True)
    job.steps(3)
    _in_store(job, 2, "a")
    _in_store(job, 3, "b")
    for rank in (0, 1):
        job.op(rank, done=False)
    found = _looked_at(job)
    assert found.verdict.value == "missing_rank"
    assert set(found.culprits) == {2, 3}


def test_lost_rank_does_not_hide_the_missing_setter() -> None:
    job = Job(5, live=True)
    job.steps(3)
    for rank in (1, 2, 3):
        _in_store(job, rank)
    job.op(0, done=False)
    job.lose(4)
    found = _looked_at(job)
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))
    assert found.confidence.value == "likely"


def test_key_and_receive_do_not_show_which_rank_proceeded() -> None:
    job = Job(3, live=True)
    job.steps(3)
    for rank in (0, 1):
        _in_store(job, rank, "done/4")
    job.op(2, "recv", peer=0, done=False)
    found = _looked_at(job)
    assert (found.culprits, found.confidence.value) == ((0, 2), "ambiguous")


def test_rank_timed_out_for_a_key_may_be_a_victim_of_its_setter() -> None:
    job = Job(3)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    in_vain = "Timed out waiting 9000ms for recv operation to complete"
    for rank, text, at_s in (
        (0, in_vain, 9.1),
        (1, "wait timeout after 9000ms, keys: /default_pg/0//epoch_2", 9.5),
        (2, in_vain, 9.2),
    ):
        at_ns = START + int(at_s * SECOND)
        error = ExceptionFacts("torch.distributed.DistStoreError", text, at_ns=at_ns)
        end = ExitFacts("exception", 1, at_ns=at_ns)
        job.rank(rank, alive=False, host="node0", exception=error, exit=end)
    found = diagnose(job.trace(after_s=1.0))
    assert (found.culprits, found.confidence.value) == ((1,), "likely")
    assert any("'/default_pg/0//epoch_2'" in line for line in found.findings[0].evidence)


@pytest.mark.parametrize("left_at_s", [0.5, 3.0])
def test_host_of_the_store_must_exit_last(left_at_s: float) -> None:
    job = Job(3)
    job.steps(3)
    at_ns = START + int(left_at_s * SECOND)
    job.rank(0, alive=False, initialized=True, exit=ExitFacts("clean", 0, at_ns=at_ns))
    for rank in (1, 2):
        lost_ns = START + SECOND + rank
        error = ExceptionFacts("torch.distributed.DistNetworkError", "Broken pipe", at_ns=lost_ns)
        left = ExitFacts("exception", code=1, at_ns=lost_ns)
        job.rank(rank, exception=error, exit=left, alive=False, initialized=True)
    found = diagnose(job.trace())
    before = left_at_s < 1
    assert (found.verdict.value == "rank_exited") == before
    assert found.culprits == ((0,) if before else ())
    assert found.confidence.value == ("likely" if before else "ambiguous")


@pytest.mark.parametrize("initialized", [True, False])
def test_lost_store_is_reported_for_all_ranks(initialized: bool) -> None:
    """The process that hosts it was killed; without it, no rank can create another group. A rank
    that never connected may have been given a wrong address, and has lost nothing."""
    job = Job(3)
    job.steps(3)
    for rank in range(3):
        at_ns = START + SECOND + rank
        error = ExceptionFacts("torch.distributed.DistNetworkError", "Broken pipe", at_ns=at_ns)
        left = ExitFacts("exception", code=1, at_ns=at_ns)
        job.rank(rank, exception=error, exit=left, initialized=initialized)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert ("Ranks lost the store" in found.summary) == initialized
    assert ("hosts the store" in found.findings[0].fix) == initialized
