"""The cycles among ranks that wait for each other, and which ranks break all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import accumulate

from hangscope.diagnosis.graph.places import Place

_Edges = Mapping[int, list[int]]
"""Per node the nodes its edges lead to."""


class CycleGraph:
    """Ranks and the places where they wait for each other, as one graph.

    Its nodes are ranks and, as ``-1 - index``, places: a rank leads to the places where it waits,
    and a place to the ranks it waits for.
    """

    def __init__(self, places: list[Place], ranks: set[int]) -> None:
        self._ranks = ranks
        self._waiting = {tuple(r for r in place.waiters if r in ranks) for place in places}
        self._after: dict[int, list[int]] = {rank: [] for rank in ranks}
        for index, place in enumerate(places):
            self._after[~index] = sorted(ranks.intersection(place.targets))
            for rank in ranks.intersection(place.waiters):
                self._after[rank].append(~index)
        self._before: dict[int, list[int]] = {node: [] for node in self._after}
        for node, following in self._after.items():
            for other in following:
                self._before[other].append(node)
        self._one = self._cycle(())

    def breaks(self, without: Collection[int]) -> bool:
        """Whether removing these breaks the cycle."""
        if len(without) == 1:
            return not self.breakers.isdisjoint(without)
        return not self._one or not (self._one.isdisjoint(without) or self._cycle(without))

    @cached_property
    def breakers(self) -> set[int]:
        """Ranks on every cycle.

        A rank that is missing from one cycle is none. Once one such rank is found, all cycles lead
        from it back to itself and none remain without it; the others are the nodes that no such
        path can bypass.
        """
        if not self._one:
            return set(self._ranks)
        candidates = self._one & self._ranks
        while candidates:
            first = min(candidates)
            around = self._cycle([first])
            if not around:
                return {first, *self._on_every_way_around(first)}
            candidates &= around
        return set()

    @property
    def smallest_side(self) -> tuple[int, ...]:
        """The smallest set of ranks at one place whose removal breaks the cycle.

        They have all done the same, which nobody else did. Empty if two places are equally small.
        """
        few = [w for w in self._waiting if 1 < len(w) * 2 < len(self._ranks)]
        found = [w for w in sorted(few, key=len) if self.breaks(w)]
        alone = len(found) == 1 or (len(found) > 1 and len(found[0]) < len(found[1]))
        return tuple(sorted(found[0])) if alone else ()

    def _cycle(self, without: Collection[int]) -> set[int]:
        """The nodes of one cycle that avoids all of these; empty if there is none."""
        left = self._after.keys() - set(without)
        # Drop nodes that wait for nothing; only cycles remain.
        left.difference_update(_in_order(left, self._before, self._after))
        if not left:
            return set()
        node, steps = min(left), dict[int, int]()
        while node not in steps:
            steps[node] = len(steps)
            node = next(other for other in self._after[node] if other in left)
        return {other for other, step in steps.items() if step >= steps[node]}

    def _on_every_way_around(self, rank: int) -> list[int]:
        """The ranks on every path from a rank, which is on all cycles, back to itself."""
        way = _reached(rank, self._after) & _reached(rank, self._before)
        order = _in_order(way - {rank}, self._after, self._before)
        position = {node: number for number, node in enumerate(order)}
        # Edges that begin, minus edges that end, before each node.
        passed_by = [0] * (len(order) + 2)
        for node in way:
            for other in way.intersection(self._after[node]):
                passed_by[position.get(node, -1) + 1] += 1
                passed_by[position.get(other, len(order))] -= 1
        ways = accumulate(passed_by)
        return [node for node, over in zip(order, ways, strict=False) if node >= 0 and not over]


def _in_order(nodes: set[int], following: _Edges, leading: _Edges) -> list[int]:
    """Topological order of these nodes; leaves out nodes behind a cycle."""
    missing = {n: sum(m in nodes for m in leading[n]) for n in nodes}
    queue = [node for node, count in missing.items() if not count]
    order = []
    while queue:
        node = queue.pop()
        order.append(node)
        for other in following[node]:
            if other in nodes:
                missing[other] -= 1
                if not missing[other]:
                    queue.append(other)
    return order


def _reached(root: int, following: _Edges) -> set[int]:
    """All nodes reachable from a node, including itself."""
    reached, queue = {root}, [root]
    while queue:
        new = [node for node in following[queue.pop()] if node not in reached]
        reached.update(new)
        queue += new
    return reached
