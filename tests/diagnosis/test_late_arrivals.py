"""Ranks that reach a collective when the others have already timed out there."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import ExceptionFacts, ExitFacts, Flag, Phase
from tests.diagnosis.builder import SECOND, START, Job

_IN_VAIN = "Timed out waiting 10000ms for recv operation to complete"
_CLOSED = "Connection closed by peer [10.0.0.4]:1234"


def _failed(job: Job, rank: int, message: str, at_s: float) -> None:
    at_ns = START + int(at_s * SECOND)
    job.rank(
        rank,
        alive=False,
        exit=ExitFacts("exception", code=1, at_ns=at_ns),
        exception=ExceptionFacts("RuntimeError", message, at_ns=at_ns),
        initialized=True,
    )


def _judged(late_s: float, *, others: str = _IN_VAIN) -> Diagnosis:
    """Ranks 0, 2 and 3 wait from second 1 to 11; rank 1 comes then, and fails a moment later."""
    job = Job(4)
    job.steps(5)
    for rank in (0, 2, 3):
        job.op(rank, done=False, flags=Flag.RETIRED, at=1.0)
        _failed(job, rank, others, 11.0)
    job.op(1, done=False, flags=Flag.RETIRED, at=late_s)
    _failed(job, 1, _CLOSED, max(late_s, 11.0) + 0.1)
    return diagnose(job.trace(after_s=1.0))


def test_who_comes_when_the_others_have_given_up_did_not_come() -> None:
    found = _judged(40.0)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert found.findings[0].seq == 6
    assert found.findings[0].victims == (0, 2, 3)


def test_who_came_before_was_there() -> None:
    found = _judged(9.0)
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())


def test_what_others_failed_of_before_anybody_gave_up_is_no_waiting_in_vain() -> None:
    found = _judged(40.0, others=_CLOSED)
    assert (found.verdict.value, found.culprits) != ("missing_rank", (1,))


def test_who_makes_a_new_world_while_the_others_are_in_the_old_one_waits_for_them() -> None:
    job = Job(4, live=True)
    job.steps(3)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
        job.rank(rank, initialized=True)
    phases = (Phase("init_process_group", START + SECOND),)
    job.rank(1, initialized=False, finalized=True, phases=phases)
    found = diagnose(job.trace())
    assert found.culprits == (1,)
    assert found.verdict.value in ("deadlock_cycle", "missing_rank")
