"""Dumps dated by a copy: they may show a moving job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence
from hangscope.replay.verify import load_recorded
from hangscope.trace import formats
from hangscope.trace.model import Source, Trace

from .builder import Job

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"


def dated(name: str, after_s: float) -> Trace:
    """A recorded set of dumps as if its files had been copied so long after the last record."""
    trace = load_recorded(FIXTURES / name / "dumps")
    newest_ns = int(trace.records["created_ns"].max())
    observed_ns = newest_ns + int(after_s * 1e9)
    ranks = {r: replace(f, observed_ns=observed_ns) for r, f in trace.ranks.items()}
    return replace(trace, ranks=ranks, observed_ns=observed_ns)


def test_moving_job_is_healthy_if_the_date_proves_it() -> None:
    assert diagnose(dated("native-healthy", 0.5)).verdict.value == "healthy"


def test_without_a_credible_date_a_staircase_accuses_no_rank() -> None:
    found = diagnose(dated("native-healthy", 3600.0))
    assert found.verdict.value == "inconclusive"
    assert found.culprits == ()


def test_ranks_waiting_together_still_show_the_missing_one() -> None:
    found = diagnose(dated("native-loader-asleep", 3600.0))
    assert found.verdict.value == "missing_rank"
    assert len(found.culprits) == 1


@pytest.mark.parametrize(("timeout_s", "sure"), [(30, False), (1800, True)])
def test_wait_far_beyond_the_timeout_is_impossible(timeout_s: int, sure: bool) -> None:
    """Two hours after the last record: no watchdog of half a minute wrote the dumps then."""
    job = Job(4)
    job.steps(3)
    for rank in range(3):
        job.op(rank, done=False)
    trace = job.trace(after_s=7200.0)
    trace.records["timeout_ms"] = timeout_s * 1000
    dumps = tuple(Source(f"trace_{r}", formats.PICKLE, rank=r) for r in range(4))
    found = diagnose(replace(trace, sources=dumps))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))
    assert found.confidence is (Confidence.CERTAIN if sure else Confidence.LIKELY)


@pytest.mark.parametrize("dated", [True, False])
def test_without_times_no_rank_is_certainly_stuck(dated: bool) -> None:
    job = Job(4)
    job.steps(3)
    for rank in range(4):
        job.op(rank, done=False)
    trace = job.trace(after_s=700.0)
    if not dated:
        trace.records["created_ns"] = 0
        trace.records["completed_ns"] = 0
    dumps = tuple(Source(f"trace_{r}", formats.PICKLE, rank=r) for r in range(4))
    found = diagnose(replace(trace, sources=dumps))
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())
    assert found.confidence is (Confidence.CERTAIN if dated else Confidence.LIKELY)
