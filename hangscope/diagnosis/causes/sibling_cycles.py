"""Equally shaped cycles side by side in sibling groups.

The mistake of a single rank closes one cycle, and everybody else who is held up waits for a rank on
it. If the counterparts of its ranks form a cycle too, a whole row of ranks (a tensor-parallel group
or a stage) did the same. Evidence against a single rank, such as that others did something
different or that the cycle breaks without it, then no longer counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place

Cycle = tuple[set[int], set[int]]
"""Its ranks, and the indices of the places where they wait for each other."""
_Edge = tuple[object, bool, frozenset[int], frozenset[int]]


def ranks_of_sibling_cycles(context: Context, cycles: Sequence[Cycle]) -> list[frozenset[int]]:
    """For each cycle the ranks of all others of its shape: they are as suspect as its own."""
    rows: dict[frozenset[_Edge], set[int]] = defaultdict(set)
    shapes = [_shape(context, ranks, places) for ranks, places in cycles]
    for shape, (ranks, _) in zip(shapes, cycles, strict=True):
        rows[shape] |= ranks
    return [
        frozenset(rows[shape] - ranks) for shape, (ranks, _) in zip(shapes, cycles, strict=True)
    ]


def _shape(context: Context, ranks: set[int], places: set[int]) -> frozenset[_Edge]:
    """Which members of which kinds of groups wait for which; sequence numbers only show
    progress."""
    return frozenset(
        (
            context.kinds[place.group],
            place.p2p,
            _positions(context, place, ranks.intersection(place.waiters)),
            _positions(context, place, ranks.intersection(place.targets)),
        )
        for place in context.waits.at(places)
        if place.group >= 0
    )


def _positions(context: Context, place: Place, ranks: set[int]) -> frozenset[int]:
    """Indices of these members in the group."""
    members = context.trace.groups[place.group].ranks
    return frozenset(i for i, rank in enumerate(members) if rank in ranks)
