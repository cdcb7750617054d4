"""Ranks that create a different number of process groups than the others.

Every rank has to create every group, whether it is a member or not: groups get their names, by
which members find each other, from the number of the call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import NEW_GROUP, Place, detail_in
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.model import RankFacts

_CALL = re.compile(r"call (\d{1,9})\b(?:, )?(.*)", re.DOTALL)
"""The recorder's detail of the phase."""
_RANKS = re.compile(r"ranks ([\d,]+)")


@dataclass(frozen=True, slots=True)
class Call:
    """A ``new_group`` call that a rank is in: its number, its members as far as shown, and the full
    detail."""

    number: int
    members: tuple[int, ...]
    words: str


def call_of(facts: RankFacts) -> Call | None:
    """The numbered call of ``new_group`` that a rank is in, if any."""
    detail = detail_in(facts, NEW_GROUP)
    found = _CALL.match(detail) if detail is not None else None
    if found is None:
        return None
    ranks = _RANKS.search(found[2])
    members = tuple(int(r) for r in ranks[1].split(",") if r) if ranks is not None else ()
    return Call(int(found[1]), members, found[2])


def name_different_calls(context: Context, place: Place, cause: Cause) -> Cause:
    """If all ranks are in ``new_group`` but in different calls of it, say so."""
    calls = {rank: call_of(context.trace.ranks[rank]) for rank in place.waiters}
    by_number: dict[int, list[int]] = defaultdict(list)
    made = set()
    for rank, call in calls.items():
        if call is None:
            return cause
        by_number[call.number].append(rank)
        made.add(call.words)
    if len(by_number) < 2 or len(made) > 1:
        # Different groups may be created at one time, each by the ranks that wait for it.
        return cause
    sides = sorted(by_number.items(), key=lambda item: (-len(item[1]), item[0]))
    decided = len(sides[0][1]) > len(sides[1][1])
    conflict = " while ".join(
        f"{rank_s(ranks)} {'is' if len(ranks) == 1 else 'are'} in call {number} of new_group"
        for number, ranks in reversed(sides)
    )
    return replace(
        cause,
        verdict=Verdict.COLLECTIVE_MISMATCH,
        culprits=tuple(sorted(r for _, ranks in sides[decided:] for r in ranks)),
        confidence=Confidence.CERTAIN if decided else Confidence.AMBIGUOUS,
        sides=tuple(tuple(ranks) for _, ranks in sides),
        conflict=conflict,
    )
