"""Where all waiting ends: the sink components of the wait-for graph."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from hangscope.diagnosis.graph.places import Waits


def components(waits: Waits) -> list[tuple[set[int], set[int]]]:
    """Sink components: sets of (ranks, places) out of which no waiting leads.

    Tarjan's algorithm without recursion over ranks (non-negative) and places (``~index``).
    """
    targets = {~i: p.targets for i, p in enumerate(waits.places)}

    def edges(node: int) -> Sequence[int]:
        return targets[node] if node < 0 else [~i for i in waits.out(node)]

    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    component: dict[int, int] = {}
    groups: list[list[int]] = []
    starts = [r for p in waits.places for r in p.waiters] + list(targets)
    for start in starts:
        if start in number:
            continue
        work = [(start, iter(edges(start)))]
        number[start] = low[start] = len(number)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            for following in rest:
                if following not in number:
                    number[following] = low[following] = len(number)
                    stack.append(following)
                    on_stack.add(following)
                    work.append((following, iter(edges(following))))
                    break
                if following in on_stack:
                    low[node] = min(low[node], number[following])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == number[node]:
                    members = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component[member] = len(groups)
                        members.append(member)
                        if member == node:
                            break
                    groups.append(members)
    sinks = []
    for index, members in enumerate(groups):
        if all(component[t] == index for m in members for t in edges(m)):
            sinks.append(({m for m in members if m >= 0}, {~m for m in members if m < 0}))
    return sinks


def circles_without(waits: Waits, lost: AbstractSet[int]) -> list[tuple[set[int], set[int]]]:
    """Circles of waiting that would stand although all of ``lost`` came: (ranks, places).

    Who is absent counts where it is known not to have come, who is held up where all that it waits
    for counts: all others may be waiting for the lost ones.
    """
    places = []
    for place in waits.places:
        unsure = place.weak or (place.half is not None and place.half.matched is None)
        absent = () if unsure else tuple(r for r in place.absent if r not in lost)
        behind = () if unsure else tuple(r for r in place.behind if r not in lost)
        places.append(replace(place, absent=absent, behind=behind, unknown=()))
    before = -1
    waiting: set[int] = set()
    while before != len(waiting):
        before = len(waiting)
        waiting = {r for p in places if p.targets for r in p.waiters if r not in waits.cut}
        loose = {r for p in places if not p.targets and not p.weak for r in p.waiters}
        held_up = waiting - loose
        for index, place in enumerate(places):
            absent = tuple(r for r in place.absent if r in waiting)
            behind = tuple(r for r in place.behind if r in held_up)
            places[index] = replace(place, absent=absent, behind=behind)
    places = [place if place.targets else replace(place, waiters=()) for place in places]
    places_of = {r: [i for i in m if places[i].targets] for r, m in waits.places_of.items()}
    found = components(replace(waits, places=places, places_of=places_of))
    return [(ranks, here) for ranks, here in found if ranks and here]
