"""Dumps whose files carry the date of a copy: they may show a job that moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hangscope.diagnosis.engine import diagnose
from hangscope.replay.verify import load_recorded
from hangscope.trace.model import Trace

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"


def dated(name: str, after_s: float) -> Trace:
    """A recorded set of dumps as if its files had been copied so long after the last record."""
    trace = load_recorded(FIXTURES / name / "dumps")
    newest_ns = int(trace.records["created_ns"].max())
    observed_ns = newest_ns + int(after_s * 1e9)
    ranks = {r: replace(f, observed_ns=observed_ns) for r, f in trace.ranks.items()}
    return replace(trace, ranks=ranks, observed_ns=observed_ns)


def test_a_moving_job_is_healthy_where_the_date_proves_it() -> None:
    assert diagnose(dated("native-healthy", 0.5)).verdict.value == "healthy"


def test_without_a_credible_date_nobody_of_a_staircase_is_accused() -> None:
    found = diagnose(dated("native-healthy", 3600.0))
    assert found.verdict.value == "inconclusive"
    assert found.culprits == ()


def test_ranks_that_wait_together_still_tell_who_is_missing() -> None:
    found = diagnose(dated("native-loader-asleep", 3600.0))
    assert found.verdict.value == "missing_rank"
    assert len(found.culprits) == 1
