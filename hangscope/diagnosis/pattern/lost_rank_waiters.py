"""Ranks that wait for a lost rank in another operation than their siblings issued there.

The lost rank's half of the exchange is not recorded. But if most sibling groups did the same until
then and issued something else under that number, the rank that waits would be left waiting whatever
the lost rank did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.pattern.sibling_groups import siblings
from hangscope.diagnosis.records.agreement import aspect_of, terms
from hangscope.trace.model import NONE

_ENOUGH_PAST = 2
_PAST = 24
_MOST_LOST = 4
_MOST_MEMBERS = 4
_LARGE_GROUP = 64
"""Larger groups have too many members to compare, and everybody is in one of them."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """``rank`` issued another operation at ``place`` than its siblings.

    ``aspect``: how they differ (as in `hangscope.diagnosis.records.mismatch.Mismatch`). ``row``: a
    record of what the siblings issued there.
    """

    rank: int
    place: Place
    aspect: str
    row: int


def deviations_from_siblings(
    context: Context, lost: AbstractSet[int], until_ns: int
) -> list[Deviation]:
    """Waiting ranks that share a group with one of the ``lost`` and deviated from their siblings.

    A wait that began after ``until_ns`` explains nothing. Empty if all of them differ (then the
    siblings run another program), or if many ranks are lost.
    """
    if len(lost) > _MOST_LOST:
        return []
    shared = [i for i, g in enumerate(context.trace.groups) if not lost.isdisjoint(g.ranks)]
    sizes = [context.trace.groups[i].ranks for i in shared]
    near = {r for ranks in sizes if len(ranks) <= _LARGE_GROUP for r in ranks}
    at = {}
    for rank in near:
        places = context.waits.of(rank)
        if waits := [p for p in places if p.group >= 0 and p.began_ns <= until_ns]:
            at[rank] = waits
    found = {}
    for rank, waits in sorted(at.items()):
        left = _by_operation(context, rank, waits)
        left = left or _by_operation(context, rank, waits, any_member=True)
        if left is not None:
            found[rank] = left
    return list(found.values()) if len(found) < max(len(at), 2) else []


def _by_operation(
    context: Context, rank: int, places: Sequence[Place], *, any_member: bool = False
) -> Deviation | None:
    """Whether most siblings with the same past issued something else where the rank waits.

    ``any_member``: if the rank's counterpart in a sibling group has not arrived, use another
    member's operation: all have to issue the same.
    """
    for place in places:
        row = context.row_of(place.group, rank, place.seq)
        ranks = context.trace.groups[place.group].ranks
        if place.p2p or row == NONE or rank not in ranks:
            continue
        votes: Counter[str] = Counter()
        examples = {}
        for other in siblings(context, place.group):
            members = context.trace.groups[other].ranks
            asked = members[:_MOST_MEMBERS] if any_member else (members[ranks.index(rank)],)
            rows = (context.row_of(other, r, place.seq) for r in asked)
            sibling_row = next((row for row in rows if row != NONE), NONE)
            if sibling_row == NONE or (_is_new(context, sibling_row) and not _is_new(context, row)):
                continue  # nobody arrived there, or the sibling is the one that did something new
            if _same_past(context, row, sibling_row):
                aspect = _disagreement(context, row, sibling_row)
                votes[aspect] += 1
                examples[aspect] = sibling_row
        best = max(votes, key=lambda a: votes[a], default="")
        if best and votes[best] * 2 > votes.total():
            return Deviation(rank, place, best, examples[best])
    return None


def _disagreement(context: Context, row: int, other: int) -> str:
    """How the operations of two groups differ; empty if they could be the same."""
    trace = context.trace
    first, second = (trace.signatures[int(trace.records["signature"][r])] for r in (row, other))
    roots = _root_place(context, row), _root_place(context, other)
    return aspect_of(terms(first), terms(second), roots) or ""


def _root_place(context: Context, row: int) -> int:
    """The root's index in its group; -1 if unknown."""
    record = context.trace.records[row]
    ranks = context.trace.groups[int(record["group"])].ranks
    return ranks.index(int(record["root"])) if int(record["root"]) in ranks else NONE


def _same_past(context: Context, row: int, other: int) -> bool:
    """Whether the two ranks issued the same in their groups shortly before."""
    first, second = _before(context, row), _before(context, other)
    common = first.keys() & second.keys()
    return len(common) >= _ENOUGH_PAST and not any(
        _disagreement(context, first[seq], second[seq]) for seq in common
    )


def _is_new(context: Context, row: int) -> bool:
    """Whether the rank had always issued something else in this group shortly before."""
    return all(_disagreement(context, row, other) for other in _before(context, row).values())


def _before(context: Context, row: int) -> dict[int, int]:
    """Per number of the group's collectives shortly before a record, the row."""
    record = context.trace.records[row]
    low, _ = context.bounds[int(record["rank"])]
    part = context.trace.records[low:row]
    seq = int(record["collective_seq"])
    here = (part["group"] == record["group"]) & (part["collective_seq"] >= seq - _PAST)
    hits = np.flatnonzero(here & context.front.collective[low:row])
    return dict(zip(part["collective_seq"][hits].tolist(), (low + hits).tolist(), strict=True))
