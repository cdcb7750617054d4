"""Circles of one shape that stand side by side in sibling groups.

What a single rank did wrong closes one circle, and whoever else is held up waits for somebody on
it. Where the counterparts of its ranks wait for each other as well, all of a row (the ranks of a
tensor-parallel group, or those of a stage) did the same: what speaks against one rank alone, as
that the others did otherwise or that the circle falls apart without it, then speaks against nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hangscope.diagnosis.causes.cycle_breakers import places_at
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place

Circle = tuple[set[int], set[int]]
"""Its ranks, and the indexes of the places at which they wait for each other."""
_Edge = tuple[object, bool, frozenset[int], frozenset[int]]


def mates_in_rows(context: Context, circles: Sequence[Circle]) -> list[frozenset[int]]:
    """Of each circle the ranks of all others of its shape: they are as suspect as its own."""
    rows: dict[frozenset[_Edge], set[int]] = defaultdict(set)
    shapes = [_shape(context, ranks, places) for ranks, places in circles]
    for shape, (ranks, _) in zip(shapes, circles, strict=True):
        rows[shape] |= ranks
    return [
        frozenset(rows[shape] - ranks) for shape, (ranks, _) in zip(shapes, circles, strict=True)
    ]


def _shape(context: Context, ranks: set[int], places: set[int]) -> frozenset[_Edge]:
    """Which members of groups of which kinds wait for which; numbers tell only how far they got."""
    return frozenset(
        (
            context.kinds[place.group],
            place.p2p,
            _positions(context, place, ranks.intersection(place.waiters)),
            _positions(context, place, ranks.intersection(place.targets)),
        )
        for place in places_at(context, places)
        if place.group >= 0
    )


def _positions(context: Context, place: Place, ranks: set[int]) -> frozenset[int]:
    """Where in the group these of its members stand."""
    members = context.trace.groups[place.group].ranks
    return frozenset(i for i, rank in enumerate(members) if rank in ranks)
