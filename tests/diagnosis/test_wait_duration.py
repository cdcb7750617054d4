"""Nobody is missing: an operation starts with the last arrival, however long others waited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.graph.places import Place, Waits
from hangscope.diagnosis.records.frontier import frontiers
from hangscope.diagnosis.waiting.early_dumps import stood_still
from hangscope.trace.model import ExitFacts, Phase
from tests.diagnosis.builder import SECOND, START, Job


@pytest.mark.parametrize(
    ("alone_s", "together_s", "expected"),
    [(0.0, 12.0, "stuck_collective"), (30.0, 12.0, "stuck_collective"), (30.0, 2.0, "healthy")],
)
def test_operation_is_late_from_the_arrival_of_its_last_member(
    alone_s: float, together_s: float, expected: str
) -> None:
    job = Job(4, live=True, timeout_s=10.0)
    job.steps(5)
    for rank in range(3):
        job.op(rank, done=False)
    job.op(3, done=False, at=job.now + alone_s)
    assert diagnose(job.trace(after_s=together_s)).verdict.value == expected


def test_absent_rank_is_late_from_the_first_wait() -> None:
    job = Job(4, live=True, timeout_s=10.0)
    job.steps(5)
    job.op(0, done=False)
    for rank in (1, 2):
        job.op(rank, done=False, at=job.now + 8.0)
    found = diagnose(job.trace(after_s=2.0))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))


def test_clock_that_is_ahead_hides_no_hang() -> None:
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
def test_job_stopped_while_its_ranks_start_has_not_hung(
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


def test_wait_of_a_starting_job_that_was_stopped_is_remarked() -> None:
    job = Job(3, timeout_s=120.0)
    for rank in range(3):
        end = ExitFacts("signal", signal=15, at_ns=START + 45 * SECOND + rank)
        phases = (Phase("init_process_group", START + rank * SECOND),) if rank < 2 else ()
        job.rank(rank, alive=False, phases=phases, initialized=False, exit=end)
    notes = diagnose(job.trace(after_s=45)).notes
    assert (
        "ranks 0, 1 had waited for rank 2 in init_process_group for 45 s when the job was ended:"
        " too short to tell a hang from a slow start"
    ) in notes


@pytest.mark.parametrize(
    ("late_s", "expected", "culprit"), [(3.0, "missing_rank", 2), (11.0, "collective_mismatch", 0)]
)
def test_rank_that_arrived_late_and_waits_now_is_not_missing(
    late_s: float, expected: str, culprit: int
) -> None:
    """Rank 0 has waited for the timeout, rank 1 not yet: it waits for rank 2, which is asleep. A
    wait of one second only shows that it is working."""
    job = Job(3, live=True, timeout_s=10.0)
    pair = job.group(1, 2)
    job.steps(5)
    began = job.now
    job.op(0, done=False)
    job.op(1, group=pair, done=False, at=began + late_s)
    found = diagnose(job.trace(after_s=began + 12.0 - job.now))
    assert (found.verdict.value, found.culprits) == (expected, (culprit,))


def test_cycle_closed_after_its_first_wait_began_is_reported_as_one() -> None:
    """Rank 0 saves alone: the others proceed to their gradients, and wait there for it."""
    job = Job(4, live=True, timeout_s=10.0)
    gradients = job.group(0, 1, 2, 3)
    for _ in range(5):
        job.all()
        for rank in range(4):
            job.op(rank, group=gradients)
    began = job.now
    job.op(0, "barrier", size=(), line=31, done=False)
    for rank in (1, 2, 3):
        job.op(rank, group=gradients, done=False)
    found = diagnose(job.trace(after_s=began + 10.002 - job.now))
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (0,))
    assert "wait for nobody" not in found.findings[0].why


@pytest.mark.parametrize(
    ("waited_s", "expected"),
    [
        (59.0, False),
        (60.0, True),
        (3 * 200 + 3600.0, True),
        (3 * 200 + 3601.0, False),  # these files were copied, and lost their dates
    ],
)
def test_dates_show_a_standstill_from_a_minute_to_an_hour_beyond_any_timeout(
    waited_s: float, expected: bool
) -> None:
    job = Job(2)
    job.op(0, done=False)
    trace = job.trace(after_s=waited_s)
    trace.records["timeout_ms"] = 200_000
    front = frontiers(trace)
    place = Place(0, 1, waiters=(0,), began_ns=int(trace.records["created_ns"][0]))
    facts = {0: replace(trace.ranks[0], observed_ns=place.began_ns + int(waited_s * SECOND))}
    context = Context(replace(trace, ranks=facts), front, {}, Waits([place], {0: [0]}, {}))
    assert stood_still(context) is expected
