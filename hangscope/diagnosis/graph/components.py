"""Sink components of the wait-for graph: where all waiting ends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from hangscope.diagnosis.graph.places import Place, Waits


def components(waits: Waits) -> list[tuple[set[int], set[int]]]:
    """Sink components as (ranks, places): no edge leads out of them.

    Nodes of the graph are ranks (non-negative) and places (``~index``).
    """
    targets = {~i: p.targets for i, p in enumerate(waits.places)}

    def edges(node: int) -> Sequence[int]:
        return targets[node] if node < 0 else [~i for i in waits.out(node)]

    search = _Search(edges)
    search.run([r for p in waits.places for r in p.waiters] + list(targets))
    return [
        ({m for m in members if m >= 0}, {~m for m in members if m < 0})
        for index, members in enumerate(search.found)
        if all(search.component_of[t] == index for m in members for t in edges(m))
    ]


class _Search:
    """Tarjan's strongly connected components, without recursion because paths are long."""

    def __init__(self, edges: Callable[[int], Sequence[int]]) -> None:
        self.found: list[list[int]] = []
        self.component_of: dict[int, int] = {}
        self._edges = edges
        self._number: dict[int, int] = {}
        self._low: dict[int, int] = {}
        """The lowest number known to be reachable from a node."""
        self._open: list[int] = []
        """Nodes whose component is not yet known."""
        self._path: list[tuple[int, Iterator[int]]] = []

    def run(self, starts: Iterable[int]) -> None:
        """Find the components of everything reachable from these nodes."""
        for start in starts:
            if start not in self._number:
                self._enter(start)
            while self._path:
                self._go_on()

    def _enter(self, node: int) -> None:
        self._number[node] = self._low[node] = len(self._number)
        self._open.append(node)
        self._path.append((node, iter(self._edges(node))))

    def _go_on(self) -> None:
        """Follow the newest node's edges to an unvisited one, or leave the node."""
        node, rest = self._path[-1]
        for following in rest:
            if following not in self._number:
                self._enter(following)
                return
            if following not in self.component_of:
                self._low[node] = min(self._low[node], self._number[following])
        self._path.pop()
        if self._path:
            parent = self._path[-1][0]
            self._low[parent] = min(self._low[parent], self._low[node])
        if self._low[node] == self._number[node]:
            self._close(node)

    def _close(self, root: int) -> None:
        """All nodes opened since the root form one component."""
        members = [self._open.pop()]
        while members[-1] != root:
            members.append(self._open.pop())
        self.component_of.update(dict.fromkeys(members, len(self.found)))
        self.found.append(members)


def cycles_without(waits: Waits, lost: AbstractSet[int]) -> list[tuple[set[int], set[int]]]:
    """Cycles of waiting, as (ranks, places), that would remain even if all of ``lost`` arrived.

    A rank counts as absent only if it is known not to have arrived, and as held up only if
    everything it waits for counts; all others may be waiting for the lost ranks.
    """
    places = []
    for place in waits.places:
        unsure = place.weak or (place.half is not None and place.half.matched is None)
        absent = () if unsure else tuple(r for r in place.absent if r not in lost)
        behind = () if unsure else tuple(r for r in place.behind if r not in lost)
        places.append(replace(place, absent=absent, behind=behind, unknown=()))
    places = _remaining(places, waits.cut)
    places_of = {r: [i for i in m if places[i].targets] for r, m in waits.places_of.items()}
    found = components(replace(waits, places=places, places_of=places_of))
    return [(ranks, here) for ranks, here in found if ranks and here]


def _remaining(places: list[Place], cut: AbstractSet[int]) -> list[Place]:
    """The places reduced to targets that wait themselves; places without targets lose their
    waiters.

    A rank that waits nowhere will arrive. One that has arrived and is held up moves on as soon as
    one of the places where it waits has no targets left.
    """
    absent = [set(place.absent) for place in places]
    behind = [set(place.behind) for place in places]
    open_at = Counter(r for p in places if p.targets for r in p.waiters if r not in cut)
    due_at: dict[int, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        for rank in place.targets:
            due_at[rank].append(index)
        for rank in place.behind if place.absent else ():
            due_at[rank].append(index)
    loose = {r for p in places if not p.targets and not p.weak for r in p.waiters}
    queue = [rank for rank in due_at if rank in loose or not open_at[rank]]
    while queue:
        rank = queue.pop()
        for index in due_at[rank]:
            if not absent[index] and not behind[index]:
                continue
            behind[index].discard(rank)
            if not open_at[rank]:
                absent[index].discard(rank)
            if not absent[index] and not behind[index]:
                waiters = [r for r in places[index].waiters if r not in cut]
                open_at.subtract(waiters)
                queue += [r for r in waiters if not places[index].weak or not open_at[r]]
    return [
        replace(
            place,
            waiters=place.waiters if absent[i] or behind[i] else (),
            absent=tuple(r for r in place.absent if r in absent[i]),
            behind=tuple(r for r in place.behind if r in behind[i]),
        )
        for i, place in enumerate(places)
    ]
