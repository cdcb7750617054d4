"""A doubt is a row: when it applies, the most that a cause may claim then, and the sentence for it.

A doubt looks at the evidence and at the cause as it was found, never at what other doubts have made
of it. So the order of the rows does not matter: the lowest cap counts, and no cap raises a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.observability import cut_off
from hangscope.diagnosis.waiting.early_dumps import dumped_before
from hangscope.diagnosis.wording.phrases import rank_s


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
    """``applies`` gives the sentence, without a final full stop; empty if there is no doubt.

    ``of``: the verdicts that may be doubted so, all if empty.
    """

    name: str
    cap: Cap
    applies: Callable[[Context, Cause], str]
    of: Collection[Verdict] = ()


def capped(context: Context, cause: Cause, doubts: Iterable[Doubt]) -> Cause:
    """The cause as far as the doubts let it go, with their sentences."""
    found = sorted(
        (doubt.cap, doubt.name, sentence)
        for doubt in doubts
        if (not doubt.of or cause.verdict in doubt.of)
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


def acquitted(context: Context, cause: Cause) -> Cause:
    """The cause without ranks whose dumps were written too early, or are cut, to accuse them.

    Where no other rank is accused, it stays as it is, and doubts say so.
    """
    if cause.confidence is Confidence.AMBIGUOUS or cause.verdict is Verdict.DEADLOCK_CYCLE:
        return cause  # each of the accused stands for all of them
    early = dumped_before(context, cause)
    if cause.verdict is not Verdict.STUCK_COLLECTIVE and 0 < len(early) < len(cause.culprits):
        why = f"{rank_s(early)} had been dumped before the others waited for long"
        cause = cause.acquitting(early, why)
    cut = cut_off(context.trace).intersection(cause.culprits)
    if not 0 < len(cut) < len(cause.culprits):
        return cause
    why = f"what {rank_s(sorted(cut))} issued last: the file is cut or damaged before that"
    return cause.acquitting(cut, why)
