"""Ranks that make process groups in another number than the others.

Every rank has to make every group, members or not: groups get their names, by which members find
each other, from the number of the call.
"""

from __future__ import annotations

import re
from collections import defaultdict

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.places import Place
from hangscope.diagnosis.sentences import rank_s

PHASE = "new_group"
CALL = re.compile(r"^call (\d{1,9})\b")
"""How the recorder's detail of the phase begins."""


def name_different_calls(context: Context, place: Place, cause: Cause) -> None:
    """Where all ranks are in ``new_group``, and not in the same call of it, say so."""
    calls: dict[int, list[int]] = defaultdict(list)
    for rank in place.waiters:
        phases = context.trace.ranks[rank].phases
        found = CALL.match(phases[-1].detail) if phases else None
        if found is None:
            return
        calls[int(found[1])].append(rank)
    made = {_members(context.trace.ranks[r].phases[-1].detail) for r in place.waiters}
    if len(calls) < 2 or len(made) > 1:
        return  # different groups may well be made at one time, each by those who wait for it
    sides = sorted(calls.items(), key=lambda item: (-len(item[1]), item[0]))
    decided = len(sides[0][1]) > len(sides[1][1])
    cause.verdict = Verdict.COLLECTIVE_MISMATCH
    cause.culprits = tuple(sorted(r for _, ranks in sides[decided:] for r in ranks))
    cause.confidence = Confidence.CERTAIN if decided else Confidence.AMBIGUOUS
    cause.sides = [tuple(ranks) for _, ranks in sides]
    cause.conflict = " while ".join(
        f"{rank_s(ranks)} {'is' if len(ranks) == 1 else 'are'} in call {number} of new_group"
        for number, ranks in reversed(sides)
    )


def _members(detail: str) -> str:
    return detail.partition(", ")[2]
