"""Ranks that others wait for and that are seen working: slow or stuck?"""

from __future__ import annotations

from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.facts import RUNNABLE
from hangscope.trace.model import ExitFacts, Frame, KernelWait, ThreadStack

from .builder import SECOND, START, Job

LIB = "/usr/lib/python3.11"
MINE = Frame("write_shards", "/home/me/save.py", 7)


def _waited_for(*below: Frame, live: bool = True, **facts: Any) -> Job:
    """Rank 1 has not come to where all others wait."""
    job = Job(3, live=live)
    job.steps(4)
    job.op(0, done=False)
    job.op(2, done=False)
    main = ThreadStack("MainThread", True, (*below, MINE), START)
    job.rank(1, threads=(main,), **facts)
    return job


@pytest.mark.parametrize(
    "facts",
    [
        {"cpu_busy": 0.9},
        {"stack_moved": True},
        {"wakeups_hz": 3.0},  # it writes piece by piece to a slow disk
    ],
)
def test_rank_with_progress_may_be_slow(facts: dict[str, Any]) -> None:
    found = diagnose(_waited_for(**facts).trace())
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (1,))
    assert found.confidence is Confidence.LIKELY
    (unknown,) = found.findings[0].unknowns
    assert "rank 1 is at work, and may only take longer than HANGSCOPE_TIMEOUT (10 s)" in unknown


@pytest.mark.parametrize(
    ("below", "facts"),
    [
        ((), {"wakeups_hz": 0.2}),  # a wait that polls now and then
        ((), {"wakeups_hz": None}),
        ((), {"wakeups_hz": 20.0, "wait": KernelWait("timer")}),  # it sleeps between two tries
        ((), {"process_state": "stopped", "stack_moved": True}),
        ((), {"gil_blocked": True, "cpu_busy": 1.0}),
        ((Frame("get", f"{LIB}/queue.py", 180),), {"wakeups_hz": 10.0}),
        ((Frame("wait", "/x/torch/utils/file_baton.py", 50),), {"wakeups_hz": 10.0}),
    ],
)
def test_polling_or_throttled_rank_is_not_slow(
    below: tuple[Frame, ...], facts: dict[str, Any]
) -> None:
    found = diagnose(_waited_for(*below, **facts).trace())
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (1,))
    assert found.confidence is Confidence.CERTAIN


def test_rank_without_cpu_time_does_not_hold_the_gil() -> None:
    """Its heartbeat stops too, because the whole process runs only now and then."""
    wait = KernelWait(RUNNABLE, "0.1% of one", since_ns=START, seen_ns=START + 5 * SECOND)
    slow = {"process_state": "running", "cpu_busy": 0.001, "wait": wait}
    found = diagnose(_waited_for(gil_blocked=True, **slow).trace())
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (1,))
    assert found.confidence is Confidence.LIKELY
    first = found.findings[0]
    assert "GIL" not in " ".join((first.why, first.fix, *first.evidence))
    assert "its control group may use 0.1% of one (cpu.max)" in first.fix
    assert "rank 1: getting hardly any CPU time" in first.evidence[-1]


@pytest.mark.parametrize(("kind", "doubtful"), [("child", True), ("thread", True), ("lock", False)])
def test_child_process_at_work_may_be_awaited(kind: str, doubtful: bool) -> None:
    found = diagnose(_waited_for(helpers_busy=0.9, wait=KernelWait(kind)).trace())
    assert found.culprits == (1,)
    assert (found.confidence is Confidence.LIKELY) is doubtful
    if doubtful:
        assert "what rank 1 has started is at work" in found.findings[0].unknowns[0]


def test_end_from_outside_makes_nothing_more_certain() -> None:
    job = _waited_for(live=False, cpu_busy=0.9)
    for rank in range(3):
        end = ExitFacts("signal", signal=9, at_ns=START + int((job.now + 20) * SECOND))
        job.rank(rank, alive=False, exit=end)
    found = diagnose(job.trace())
    assert (found.culprits, found.confidence) == ((1,), Confidence.LIKELY)
    assert "rank 1 was at work" in found.findings[0].unknowns[0]


def test_absent_rank_of_an_ended_job_is_known_to_be_absent() -> None:
    found = diagnose(_waited_for(live=False, cpu_busy=0.9).trace())
    assert found.confidence is Confidence.CERTAIN
