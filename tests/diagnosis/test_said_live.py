"""What the monitor said while the job ran, where less is left of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.model import Claim, ExitFacts, Trace
from hangscope.trace.witnesses.journal import OWN_VERDICT

from .builder import SECOND, START, Job


def _said(after_s: float, **details: Any) -> Claim:
    told = {"verdict": "missing_rank", "culprits": (1,), "confidence": "certain", **details}
    at_ns = START + int(after_s * SECOND)
    return Claim(OWN_VERDICT, text="Rank 1 never came", at_ns=at_ns, details=told, certain=False)


def _killed_at_once(claim: Claim, *, clean: bool = False) -> Trace:
    """Nobody waits for anybody on record, and all end at one moment."""
    job = Job(3)
    job.steps(4)
    for rank in range(3):
        at_ns = START + int((job.now + 3.0) * SECOND)
        end = ExitFacts("clean", 0) if clean else ExitFacts("signal", signal=9, at_ns=at_ns)
        job.rank(rank, alive=False, exit=end)
    return job.trace(claims=(claim,))


@pytest.mark.parametrize("confidence", ["certain", "likely", "ambiguous", ""])
def test_it_is_repeated_where_nothing_else_is_found(confidence: str) -> None:
    found = diagnose(_killed_at_once(_said(2.0, confidence=confidence)))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert found.confidence.value == ("ambiguous" if confidence == "ambiguous" else "likely")
    assert found.summary == "Rank 1 never came"


@pytest.mark.parametrize(
    ("claim", "clean"),
    [
        (_said(0.0001), False),
        (_said(2.0), True),
        (_said(2.0, verdict="no such verdict"), False),
        (_said(2.0, verdict=None, culprits=()), False),
    ],
    ids=["the job went on", "all ended in order", "unknown verdict", "none"],
)
def test_it_is_not_where_it_no_longer_holds(claim: Claim, clean: bool) -> None:
    assert diagnose(_killed_at_once(claim, clean=clean)).verdict.value == "healthy"


def test_of_several_verdicts_the_first_since_the_job_stood_still_counts() -> None:
    said = (_said(2.5, culprits=(0,)), _said(2.0), _said(0.0001, culprits=(2,)))
    trace = replace(_killed_at_once(said[0]), claims=said)
    assert diagnose(trace).culprits == (1,)


def test_what_is_left_comes_first() -> None:
    job = Job(3)
    job.steps(4)
    for rank in (0, 1):
        job.op(rank, done=False)
    assert diagnose(job.trace(claims=(_said(2.0),))).culprits == (2,)
