"""A standstill that time cannot change is a hang on a live job at once, for every reader of it."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.model import Trace
from tests.diagnosis.builder import Job, stack_of


def circle(after_s: float) -> Trace:
    """Rank 3 takes two groups in the opposite order, in its sixth step."""
    job = Job(4, live=True, timeout_s=120.0)
    other = job.group(0, 1, 2, 3, desc="sync")
    for _ in range(5):
        for rank in range(4):
            job.op(rank)
            job.op(rank, group=other)
    for rank in range(3):
        job.op(rank, done=False)
    job.op(3, group=other, done=False)
    return job.trace(after_s)


def waiting(after_s: float, state: str) -> Trace:
    """Rank 2 does not come."""
    job = Job(4, live=True, timeout_s=120.0)
    job.steps(20)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    job.rank(2, threads=stack_of("load_batch"))
    trace = job.trace(after_s)
    return replace(trace, ranks={**trace.ranks, 2: replace(trace.ranks[2], process_state=state)})


def test_a_circle_of_waits_needs_no_timeout() -> None:
    found = diagnose(circle(8.0))
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (3,))
    assert found.findings[0].confidence.value == "certain"


def test_a_circle_of_a_moment_may_be_a_step() -> None:
    assert diagnose(circle(2.0)).verdict is Verdict.HEALTHY


def test_a_stopped_process_needs_no_timeout() -> None:
    found = diagnose(waiting(8.0, "stopped"))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))


def test_nor_does_one_that_is_stopped_inside_the_operation() -> None:
    job = Job(4, live=True, timeout_s=120.0)
    job.steps(20)
    for rank in range(4):
        job.op(rank, done=False)
    job.rank(2, process_state="stopped", cpu_busy=0.0, stack_moved=False)
    found = diagnose(job.trace(6.0))
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, (2,))


def test_a_process_that_sleeps_has_until_the_timeout() -> None:
    assert diagnose(waiting(8.0, "sleeping")).verdict is Verdict.HEALTHY
