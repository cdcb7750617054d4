"""A doubt is a row: when it applies, the most that a cause may claim then, and the sentence for it.

A doubt looks at the evidence and at the cause as it was found, never at what other doubts have made
of it. So the order of the rows does not matter: the lowest cap counts, and no cap raises a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict


class Cap(IntEnum):
    """The most that a cause may claim, the least first."""

    NOBODY = 0
    """It may name nobody: something is wrong here, and the accused may be innocent."""
    AMBIGUOUS = 1
    LIKELY = 2


_CONFIDENCE = {
    Cap.NOBODY: Confidence.AMBIGUOUS,
    Cap.AMBIGUOUS: Confidence.AMBIGUOUS,
    Cap.LIKELY: Confidence.LIKELY,
}
_BY_WEIGHT = (Confidence.AMBIGUOUS, Confidence.LIKELY, Confidence.CERTAIN)


class Doubt(NamedTuple):
    """``applies`` gives the sentence, without a final full stop; empty if there is no doubt."""

    name: str
    cap: Cap
    applies: Callable[[Context, Cause], str]


def capped(context: Context, cause: Cause, doubts: Iterable[Doubt]) -> Cause:
    """The cause as far as the doubts let it go, with their sentences."""
    found = sorted(
        (doubt.cap, doubt.name, sentence)
        for doubt in doubts
        if (sentence := doubt.applies(context, cause))
    )
    if not found:
        return cause
    sentences = dict.fromkeys((*cause.unknowns, *(sentence for _, _, sentence in found)))
    cap = found[0][0]
    confidence = min(cause.confidence, _CONFIDENCE[cap], key=_BY_WEIGHT.index)
    doubted = replace(cause, confidence=confidence, unknowns=tuple(sentences))
    if cap is not Cap.NOBODY:
        return doubted
    return replace(doubted, verdict=Verdict.INCONCLUSIVE, culprits=(), victims=cause.involved)
