"""What counterparts in sibling groups did: groups of the same kind run the same program.

Two counterparts have the same place in their groups. How far each had got in its group whenever it
issued a collective both took part in shows which of them left something out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pattern.sibling_groups import Halves, counterparts, halves_of

_FEW = 2
_MOST_DIVERGENCES = 2
"""A rank that deviates may return to the pattern, or deviate once more after that."""

Progress = dict[tuple[int, int], tuple[int, int]]
"""Per collective of another group, in order of issue: how far the rank had got in this one."""


def unlike_whom(
    context: Context, rank: int, groups: Iterable[int], without: Collection[int] = ()
) -> tuple[int, ...]:
    """The counterparts elsewhere that did something different than the rank in one of its groups.

    A group counts if more counterparts differ than agree; ranks ``without`` are not asked. A
    counterpart that differs from those that agree with the rank runs another program (another
    stage) and is ignored. So is one that differs from the other counterparts, as when every replica
    takes as many micro-batches as its data requires.
    """
    found: dict[int, None] = {}
    for group in groups:
        differ, agree = _compared(context, rank, group, without)
        apart = [one for one in differ if not any(_unlike(one, other) for other in agree)]
        apart = [one for one in apart if 2 * sum(_agree(one, f) for f in apart) > len(apart)]
        if len(apart) > len(agree):
            found |= dict.fromkeys(one.rank for one in apart)
    return tuple(found)


def has_measure(context: Context, rank: int, groups: Iterable[int]) -> bool:
    """Whether the records show what any counterpart of the rank did where it could have deviated.

    A rank without is not known to have done as others did.
    """
    return any(any(_compared(context, rank, group, ())) for group in groups)


def _compared(
    context: Context, rank: int, group: int, without: Collection[int]
) -> tuple[list[_Activity], list[_Activity]]:
    """The counterparts that differ from a rank in its group, and those that agree with it; those
    that have nothing in common with it are in neither."""
    votes: dict[bool, list[_Activity]] = {True: [], False: []}
    own = _activity_of(context, rank, group)
    for other, counterpart in counterparts(context, rank, group).items():
        if counterpart in without:
            continue
        sibling = _activity_of(context, counterpart, other)
        differs = _pairs_differ(own, sibling)
        fell_behind = _diverged(own.progress, sibling.progress)
        if differs is not None or fell_behind is not None:
            votes[bool(differs) or bool(fell_behind)].append(sibling)
    return votes[True], votes[False]


class _Activity(NamedTuple):
    """What a rank did in one of its groups."""

    rank: int
    pairs: Halves
    progress: Progress


def _activity_of(context: Context, rank: int, group: int) -> _Activity:
    return _Activity(rank, halves_of(context, rank, group), progress_in(context, rank, group))


def _pairs_differ(own: _Activity, sibling: _Activity) -> bool | None:
    """Whether two counterparts issued different halves under one number; None if they share
    none."""
    common = own.pairs.keys() & sibling.pairs.keys()
    return any(own.pairs[k] != sibling.pairs[k] for k in common) if common else None


def _unlike(own: _Activity, sibling: _Activity) -> bool:
    """Whether two counterparts differ, where they can be compared."""
    return bool(_pairs_differ(own, sibling) or _diverged(own.progress, sibling.progress))


def _agree(own: _Activity, sibling: _Activity) -> bool:
    """Whether two counterparts agree wherever they can be compared."""
    common = own.progress.keys() & sibling.progress.keys()
    even = all(own.progress[place] == sibling.progress[place] for place in common)
    return even and not _pairs_differ(own, sibling)


def _diverged(own: Progress, sibling: Progress) -> bool | None:
    """Whether two counterparts were equally far at one time, but not at their last common place.

    None if they have too little in common or never were equally far: another stage, another
    program. So is one that keeps diverging: a mistake is made once.
    """
    common = [place for place in own if place in sibling]  # in the order they were issued
    if len(common) < 2 or own[common[0]] != sibling[common[0]]:
        return None
    ahead = [
        (own[place][0] - sibling[place][0], own[place][1] - sibling[place][1]) for place in common
    ]
    if sum(a != b for a, b in pairwise(ahead)) > _MOST_DIVERGENCES:
        return None
    return ahead[-1] != (0, 0)


def progress_in(context: Context, rank: int, group: int) -> Progress:
    """How far the rank was in ``group`` (collectives, p2p) when it issued each collective of other
    groups."""
    low, high = context.bounds.get(rank, (0, 0))
    records = context.trace.records[low:high]
    here = records["group"] == group
    collective = context.front.collective[low:high]
    pair = here & (records["peer"] >= 0)
    done = np.maximum.accumulate(np.where(here & collective, records["collective_seq"], 0))
    pairs = np.maximum.accumulate(np.where(pair, records["p2p_seq"], 0))
    rows = np.flatnonzero(collective & ~here)[-256:]
    return {
        (int(records["group"][r]), int(records["collective_seq"][r])): (int(done[r]), int(pairs[r]))
        for r in rows.tolist()
        if done[r] > 0 or pairs[r] > 0
    }
