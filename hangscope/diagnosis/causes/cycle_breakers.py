"""Which ranks break a cycle of waiting when they are removed from it."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.cycle_graph import CycleGraph
from hangscope.diagnosis.graph.places import Place


def places_at(context: Context, indexes: Iterable[int]) -> list[Place]:
    """The places at these indices, in order."""
    return context.waits.at(sorted(indexes))


def smallest_breaking_side(places: list[Place], ranks: set[int]) -> tuple[int, ...]:
    """The smallest set of ranks at one place whose removal breaks the cycle.

    They have all done the same, which nobody else did. Empty if two places are equally small.
    """
    cycle = CycleGraph(places, ranks)
    waiting = {tuple(r for r in p.waiters if r in ranks) for p in places}
    few = sorted((w for w in waiting if 1 < len(w) * 2 < len(ranks)), key=len)
    found = [w for w in few if cycle.breaks(w)]
    alone = len(found) == 1 or (len(found) > 1 and len(found[0]) < len(found[1]))
    return tuple(sorted(found[0])) if alone else ()


def breakers_of(places: list[Place], ranks: set[int]) -> list[int]:
    """The ranks each of which breaks the cycle when removed."""
    return sorted(CycleGraph(places, ranks).breakers)
