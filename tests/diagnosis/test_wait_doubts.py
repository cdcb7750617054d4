"""Dumps that nobody's timeout triggered: how long ranks had waited decides what they prove."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Claim, Source
from tests.diagnosis.builder import SECOND, START, Job, judged

_BEGAN_S = 10.0
_GAVE_UP = Claim("timeout", reporter=0, group=0, seq=6, op="all_reduce")


def _dumped_after(job: Job, waited_s: float) -> tuple[Source, ...]:
    """Date all dumps; returns them as sources."""
    for rank in range(job.world):
        job.rank(rank, observed_ns=START + int((_BEGAN_S + waited_s) * SECOND))
    return tuple(Source(f"{r}", "flight-recorder-pickle", "2.9", r, 9) for r in range(job.world))


@pytest.mark.parametrize(
    ("waited_s", "claims", "confidence"),
    [
        (20.0, (), Confidence.LIKELY),
        (20.0, (_GAVE_UP,), Confidence.CERTAIN),
        (80.0, (), Confidence.CERTAIN),
        (10 * 3600.0, (), Confidence.LIKELY),
    ],
    ids=["too short", "a log says that it was long", "long", "files lost their dates"],
)
def test_absence_is_certain_only_if_others_are_known_to_have_waited_for_long(
    waited_s: float, claims: tuple[Claim, ...], confidence: Confidence
) -> None:
    job = Job(4, timeout_s=600.0)
    job.steps(5)
    for rank in (0, 1, 3):
        job.op(rank, done=False, at=_BEGAN_S)
    sources = _dumped_after(job, waited_s)
    found = judged(job.trace(sources=sources, claims=claims))
    assert found == (Verdict.MISSING_RANK, (2,), confidence)
