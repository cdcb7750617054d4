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


def test_rank_that_arrives_after_the_others_timed_out_was_absent() -> None:
    found = _judged(40.0)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert found.findings[0].seq == 6
    assert found.findings[0].victims == (0, 2, 3)


def test_rank_that_arrived_before_was_present() -> None:
    found = _judged(9.0)
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())


def test_failure_before_any_timeout_is_no_timeout() -> None:
    found = _judged(40.0, others=_CLOSED)
    assert (found.verdict.value, found.culprits) != ("missing_rank", (1,))


def test_rank_in_a_second_init_waits_for_those_in_the_first_world() -> None:
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
