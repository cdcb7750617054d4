"""Unobserved ends, or ends after the job had stood still, next to a lost rank."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import ExitFacts, Flag, Trace
from tests.diagnosis.builder import SECOND, START, Job, judged
from tests.diagnosis.ended_jobs import disconnect, finished, kill, without_ring


def _broken_off(job: Job, rank: int) -> None:
    """The end of a process that nobody saw, in the moment of its last operation."""
    beat = START + int(job.now * SECOND)
    job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)


def test_rank_that_ended_in_an_operation_is_not_accused_beside_a_lost_one() -> None:
    """What rank 2 completed is not on record, but its peers completed it."""
    job = Job(4)
    job.steps(4)
    for rank in (0, 1, 2):
        job.op(rank, done=rank != 2)
    for rank in (0, 1, 2):
        job.op(rank, done=False)
    for rank in (0, 1):
        disconnect(job, rank, 0.1)
    _broken_off(job, 2)
    job.lose(3)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("rank_lost", (3,))


def test_rank_with_an_unobservable_last_operation_is_not_accused_beside_a_lost_one() -> None:
    job = Job(4)
    job.steps(4)
    for rank in (0, 1, 2):
        job.op(rank, done=False, flags=Flag.UNOBSERVED)
    disconnect(job, 1, 0.1)
    for rank in (0, 2):
        _broken_off(job, rank)
    job.lose(3)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("rank_lost", (3,))


def test_rank_that_ended_in_a_completed_exchange_is_not_accused_beside_a_lost_one() -> None:
    job = Job(4)
    job.steps(4)
    for rank in (0, 1, 2):
        job.op(rank, "all_to_all", done=rank == 0)
    job.op(0, done=False)
    disconnect(job, 1, 0.1)
    for rank in (0, 2):
        _broken_off(job, rank)
    job.lose(3)
    found = diagnose(job.trace())
    assert not {0, 1, 2} & set(found.culprits)


def test_rank_elsewhere_in_a_long_hang_is_accused_beside_a_lost_one() -> None:
    """Rank 2 waits in another group when the others have long been waiting for it."""
    job = Job(5)
    pair = job.group(2, 3)
    job.steps(6)
    job.op(2, "recv", peer=3, group=pair, done=False)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    for rank in range(4):
        kill(job, rank, 20.0)
    job.lose(4)
    found = diagnose(job.trace(after_s=30))
    assert 4 not in found.culprits
    assert set(found.culprits) <= {2, 3}


def test_two_finished_and_one_waiting_rank_are_all_suspect_beside_a_lost_one() -> None:
    job = Job(4)
    job.steps(10)
    job.op(0, "barrier", done=False)
    for rank in (2, 3):
        finished(job, rank, job.now + 0.1)
    job.lose(1)
    found = diagnose(job.trace())
    assert judged(job.trace()) == ("collective_mismatch", (0, 2, 3), "ambiguous")
    assert "rank 1 left nothing" in found.findings[0].why


def _exchange_aborted(members: tuple[int, ...]) -> Trace:
    """Rank 3 aborts in a group where the others wait for it, and its ring is gone."""
    job = Job(4)
    group = job.group(*members, desc="tp")
    for _ in range(6):
        job.all(group=group)
    for rank in members[:-1]:
        job.op(rank, group=group, done=False)
        disconnect(job, rank, 0.2)
    at_ns = START + int((job.now + 0.1) * SECOND)
    job.rank(3, alive=False, exit=ExitFacts("signal", signal=6, at_ns=at_ns))
    return without_ring(job, 3)


def test_either_rank_of_an_exchange_may_have_caused_an_abort() -> None:
    assert judged(_exchange_aborted((2, 3))) == ("rank_crashed", (2, 3), "ambiguous")
    assert judged(_exchange_aborted((1, 2, 3)))[:2] == ("rank_crashed", (3,))


def test_rank_that_caught_a_failed_collective_waited_for_the_unrecorded_one() -> None:
    job = Job(3)
    job.steps(6)
    for rank in (0, 2):
        job.op(rank, done=False, flags=Flag.FAILED)
        finished(job, rank, job.now + 0.5)
    at_ns = START + int((job.now + 0.2) * SECOND)
    job.rank(1, alive=False, exit=ExitFacts("clean", 0, at_ns=at_ns))
    assert judged(without_ring(job, 1)) == ("rank_exited", (1,), "likely")


def test_rank_that_destroyed_its_groups_is_not_accused_of_an_unobserved_exit() -> None:
    job = Job(3)
    job.steps(6)
    for rank in (1, 2):
        finished(job, rank, job.now + 0.1)
    job.rank(0, alive=False, finalized=True, exit=ExitFacts("unknown"))
    assert judged(job.trace())[:2] == ("healthy", ())
    job.rank(0, finalized=False)
    assert judged(job.trace()) == ("rank_crashed", (0,), "likely")
