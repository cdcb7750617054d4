"""Ranks held up by a single send: a device executes it before anything issued later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from hangscope.diagnosis.graph.places import Place
from hangscope.trace.model import NONE


def held_up_by_sends(
    places: list[Place], places_of: Mapping[int, list[int]], oldest_row: Mapping[int, int]
) -> dict[int, list[int]]:
    """Per rank held up by its sends, the places these keep it from; updates ``places`` accordingly.

    A partner that has reached a half which the rank issued after the send waits for the rank, and
    may in turn hold up another.
    """
    held: dict[int, list[int]] = {}
    towards: dict[int, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        if place.half is not None:
            towards[place.half.peer].append(index)
    found = True
    while found:
        found = False
        for rank, indexes in places_of.items():
            if rank in held:
                continue
            kept, send = _held_up(places, rank, indexes, oldest_row.get(rank, NONE), held)
            if send == NONE:
                continue
            held[rank], found = kept, True
            for index in towards[rank]:
                place = places[index]
                met = place.half is not None and place.half.partner_row > send
                if met and not place.targets:
                    places[index] = replace(place, behind=(rank,))
    return held


def _held_up(
    places: list[Place],
    rank: int,
    indexes: list[int],
    oldest: int,
    held: Collection[int],
) -> tuple[list[int], int]:
    """Places where a rank would wait but for earlier single sends, and the first of those sends.

    The rank waits for nobody at such a place and everybody has arrived. Since a device executes the
    send before later operations, the others wait for the rank. ``held``: ranks found held up so
    far; any of them may be waited for at the same place. ``([], -1)`` for none.
    """
    older = [i for i in indexes if (p := places[i]).weak and p.row < oldest and p.targets]
    if not older:
        return [], NONE
    strong = [i for i in indexes if not places[i].weak]
    # Sends that the rank issued after the half it waits in do not precede anything here.
    first = [i for i in strong if places[i].p2p and places[i].row == oldest]
    first = first or [i for i in strong if not (places[i].p2p and places[i].row > oldest)]
    for place in (places[i] for i in first):
        whole = bool(place.half and place.half.matched)
        come = {*place.waiters, *place.done, *place.behind}
        if (
            not set(place.targets).issubset(held)
            or place.blind
            or not (whole if place.p2p else come.issuperset(place.members))
        ):
            return [], NONE
    if not first:
        return [], NONE
    for index in first:
        place = places[index]
        others = tuple(r for r in place.waiters if r != rank)
        behind = (*place.behind, rank) if others else ()
        places[index] = replace(place, waiters=others, behind=behind)
    for index in older:
        places[index] = replace(places[index], weak=False)
    return first, min(places[index].row for index in older)
