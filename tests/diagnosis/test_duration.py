"""Nobody missing: an operation has begun with the last to come, however long others waited."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import ExitFacts, Phase
from tests.diagnosis.builder import SECOND, START, Job


@pytest.mark.parametrize(
    ("alone_s", "together_s", "expected"),
    [(0.0, 12.0, "stuck_collective"), (30.0, 12.0, "stuck_collective"), (30.0, 2.0, "healthy")],
)
def test_an_operation_is_late_from_when_its_last_member_came(
    alone_s: float, together_s: float, expected: str
) -> None:
    job = Job(4, live=True, timeout_s=10.0)
    job.steps(5)
    for rank in range(3):
        job.op(rank, done=False)
    job.op(3, done=False, at=job.now + alone_s)
    assert diagnose(job.trace(after_s=together_s)).verdict.value == expected


def test_one_who_has_not_come_is_late_from_when_the_first_waited() -> None:
    job = Job(4, live=True, timeout_s=10.0)
    job.steps(5)
    job.op(0, done=False)
    for rank in (1, 2):
        job.op(rank, done=False, at=job.now + 8.0)
    found = diagnose(job.trace(after_s=2.0))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))


def test_a_clock_that_is_ahead_hides_no_hang() -> None:
    job = Job(4, live=True, timeout_s=10.0)
    job.steps(5)
    ahead = job.now + 3600.0
    for rank in range(3):
        job.op(rank, done=False)
    began = job.now
    job.op(3, done=False, at=ahead)
    job.now = began
    assert diagnose(job.trace(after_s=30.0)).verdict.value == "stuck_collective"


@pytest.mark.parametrize(
    ("since_s", "end_s", "expected"),
    [
        ((0, 5, 16), 20, "healthy"),
        ((0, 1, 2), 70, "stuck_collective"),
        ((0, 1, None), 20, "healthy"),
        ((0, 1, None), 70, "missing_rank"),
    ],
)
def test_a_job_that_is_stopped_while_its_ranks_still_start_has_not_hung(
    since_s: tuple[int | None, ...], end_s: int, expected: str
) -> None:
    job = Job(3, timeout_s=120.0)
    for rank, since in enumerate(since_s):
        phase = Phase("init_process_group", START + (since or 0) * SECOND)
        end = ExitFacts("signal", signal=15, at_ns=START + end_s * SECOND + rank)
        job.rank(rank, alive=False, phases=(phase,), initialized=False, exit=end)
        if since is None:
            job.rank(rank, phases=())
    assert diagnose(job.trace(after_s=end_s)).verdict.value == expected
