"""Jobs that stand still in something that leaves no record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Trace
from tests.diagnosis.builder import SECOND, START, Job, stack_of

SPINS: dict[str, Any] = {"cpu_busy": 1.0, "stack_moved": False}


def standing(*elsewhere: int, live: bool = True, **looks: Any) -> Trace:
    """Four ranks replay a graph and wait for their device; some are elsewhere."""
    job = Job(4, live=live)
    job.steps(5)
    for rank in range(4):
        threads = stack_of("sleep", 7) if rank in elsewhere else stack_of("step", 68)
        seen = {"heartbeat_ns": START + 60 * SECOND, "observed_ns": START + 60 * SECOND}
        job.rank(rank, threads=threads, **{**seen, **(looks or SPINS)})
    return on_device(job)


def on_device(job: Job) -> Trace:
    return job.trace(signatures=tuple(replace(s, backend="nccl") for s in job.signatures))


@pytest.mark.parametrize("live", [True, False])
def test_the_few_that_stand_elsewhere_are_named(live: bool) -> None:
    found = diagnose(standing(1, live=live))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (1,))
    assert found.confidence is Confidence.LIKELY
    assert "data.py:7 in sleep" in found.summary
    assert "data.py:68 in step" in found.summary
    # Only more looks can tell whether a running job stays there.
    assert bool(found.findings[0].unchanged_s) is live


def test_stopped_rank_stands_at_no_line_of_its_own() -> None:
    trace = standing()
    trace.ranks[2] = replace(trace.ranks[2], process_state="stopped")
    assert diagnose(trace).culprits == (2,)


def test_standstill_is_not_healthy_however_busy_the_processors() -> None:
    """Waiting for a device keeps a processor busy, and all stand at one line."""
    found = diagnose(standing())
    assert (found.verdict, found.culprits) == (Verdict.QUIESCENT, ())


@pytest.mark.parametrize("looks", [{"stack_moved": True}, {"cpu_busy": 1.0}])
def test_job_that_moves_is_healthy(looks: dict[str, Any]) -> None:
    """Its ranks compute for longer than the timeout without issuing anything."""
    assert diagnose(standing(1, **looks)).verdict is Verdict.HEALTHY


def test_as_many_elsewhere_decide_nothing() -> None:
    assert diagnose(standing(1, 2)).culprits == ()


@pytest.mark.parametrize("elsewhere", [(), (1,)])
def test_looks_at_a_job_that_only_replays_agree_on_the_same_words(
    elsewhere: tuple[int, ...],
) -> None:
    """Its silence shows nothing: the monitor must have seen it stand, with one finding."""
    found = []
    for later_s in (0, 7):
        trace = standing(*elsewhere)
        at_ns = trace.observed_ns + later_s * SECOND
        ranks = {
            rank: replace(f, observed_ns=at_ns, heartbeat_ns=at_ns, unobservable=("a graph",))
            for rank, f in trace.ranks.items()
        }
        found.append(diagnose(replace(trace, observed_ns=at_ns, ranks=ranks)).findings[0])
    assert found[0].summary == found[1].summary
    assert found[0].unchanged_s == standing().timeout_s
