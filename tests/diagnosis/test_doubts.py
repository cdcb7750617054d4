"""Doubts are rows: the lowest cap counts, whatever their order, and no row raises a claim."""

from __future__ import annotations

import inspect
import random

import pytest

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.doubts.doubt import Cap, Doubt, capped
from hangscope.diagnosis.doubts.table import DOUBTS
from hangscope.diagnosis.engine import _causes, _comparable, _standstill
from hangscope.diagnosis.model import Confidence, Verdict
from tests.depth import DEEP, examples
from tests.diagnosis.builder import Job, context_of
from tools.ablation.corpora import simulated, with_less_evidence

WEAKEST_FIRST = (Confidence.AMBIGUOUS, Confidence.LIKELY, Confidence.CERTAIN)


def _doubts(*caps: Cap) -> list[Doubt]:
    return [Doubt(f"d{i}", cap, lambda *_, i=i: f"unknown {i}") for i, cap in enumerate(caps)]


@pytest.mark.parametrize("confidence", list(Confidence))
@pytest.mark.parametrize("cap", list(Cap))
def test_no_cap_raises_a_claim(confidence: Confidence, cap: Cap) -> None:
    cause = Cause(Verdict.MISSING_RANK, (1,), confidence=confidence, victims=frozenset({0}))
    found = capped(context_of(Job(2).trace()), cause, _doubts(cap))
    assert WEAKEST_FIRST.index(found.confidence) <= WEAKEST_FIRST.index(confidence)
    assert found.culprits == (() if cap is Cap.NOBODY else (1,))
    assert found.involved == {0, 1}


def test_lowest_cap_counts() -> None:
    cause = Cause(Verdict.MISSING_RANK, (1,))
    found = capped(
        context_of(Job(2).trace()), cause, _doubts(Cap.LIKELY, Cap.AMBIGUOUS, Cap.LIKELY)
    )
    assert found.confidence is Confidence.AMBIGUOUS
    assert set(found.unknowns) == {"unknown 0", "unknown 1", "unknown 2"}


def test_order_of_rows_does_not_matter() -> None:
    cases = [*with_less_evidence(examples(20), 5), *simulated(examples(30), 5, lose=True)]
    rng, weighed = random.Random(3), 0
    for case in cases:
        trace, inferred = _comparable(case.trace)
        context = _standstill(trace, inferred).context
        for cause in _causes(context):
            expected = capped(context, cause, DOUBTS)
            for _ in range(3):
                assert capped(context, cause, rng.sample(DOUBTS, len(DOUBTS))) == expected
            weighed += expected != cause
    assert weighed >= (16 if DEEP else 1)


def test_every_row_says_when_it_applies() -> None:
    assert all(inspect.getdoc(doubt.applies) for doubt in DOUBTS)
    assert len({doubt.name for doubt in DOUBTS}) == len(DOUBTS)
