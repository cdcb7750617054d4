"""An uncollected ring makes nobody guilty if another rank's record shows the fault."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.load import load_trace

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("fixture", "lost", "verdict", "culprit"),
    [
        ("chaos-stopped-inside-collective", 0, Verdict.STUCK_COLLECTIVE, 3),
        ("chaos-stopped-inside-collective", 1, Verdict.STUCK_COLLECTIVE, 3),
        ("chaos-stopped-in-reduce-scatter", 3, Verdict.STUCK_COLLECTIVE, 1),
        ("chaos-gil-held-after-recv", 1, Verdict.MISSING_RANK, 5),
        ("chaos-gil-held-after-recv", 3, Verdict.MISSING_RANK, 5),
        ("pipeline-stage-asleep", 3, Verdict.MISSING_RANK, 2),
        ("pipeline-killed", 0, Verdict.RANK_CRASHED, 1),
        ("never-started", 0, Verdict.RANK_LOST, 2),
        ("never-started", 3, Verdict.RANK_LOST, 2),
    ],
)
def test_state_of_the_lost_rank_observed_by_the_monitor_is_used(
    fixture: str, lost: int, verdict: Verdict, culprit: int, tmp_path: Path
) -> None:
    """Stopped, holding the GIL, asleep elsewhere, killed: each is shown by its own ring. Nothing is
    known about a rank that was never started."""
    dumps = tmp_path / "dumps"
    shutil.copytree(FIXTURES / fixture / "dumps", dumps)
    (dumps / f"rank_{lost}.ring").unlink()
    found = diagnose(load_trace([dumps]))
    assert (found.verdict, found.culprits) == (verdict, (culprit,))
    assert found.findings[0].confidence is Confidence.LIKELY
    unknowns = " ".join(found.findings[0].unknowns)
    assert f"rank {lost} left no record" in unknowns or f"what rank {lost} issued" in unknowns
