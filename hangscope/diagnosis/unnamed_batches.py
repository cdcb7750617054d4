"""Batches of sends and receives of which only a log tells: it names the group and no partner."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hangscope.diagnosis.frontier import Frontiers
from hangscope.diagnosis.places import Place
from hangscope.trace.model import Flag, Trace

_ONLY_LOGGED = int(Flag.P2P | Flag.COALESCED_BATCH | Flag.SYNTHETIC)


def unnamed_batches(trace: Trace, front: Frontiers, waiting: Collection[int]) -> list[Place]:
    """A place for each overdue batch; ``waiting`` are ranks that wait for anything else.

    Where every other member of the group waits as well, it may be for any of them; where they all
    wait in such batches of the group, nothing tells who for whom. One that has spoken and waits for
    nothing is who it is, several are too many to tell.
    """
    records = trace.records
    rows = np.flatnonzero(((records["flags"] & _ONLY_LOGGED) == _ONLY_LOGGED) & front.unfinished)
    inside = set(zip(records["group"][rows].tolist(), records["rank"][rows].tolist(), strict=True))
    busy = {*waiting, *records["rank"][rows].tolist()}
    places = []
    for row in rows.tolist():
        record = records[row]
        rank, group = int(record["rank"]), int(record["group"])
        others = [m for m in trace.groups[group].ranks if m != rank]
        idle = [m for m in others if m in trace.ranks and m not in busy]
        lost = [m for m in others if m not in trace.ranks]
        place = Place(
            group,
            int(record["p2p_seq"]),
            [rank],
            row=row,
            p2p=True,
            began_ns=int(record["created_ns"]),
            members=(rank, *others),
        )
        if len(idle) == 1 and not lost:
            place.absent = idle
        elif idle or lost:
            place.unknown = [*idle, *lost]
        elif any((group, other) not in inside for other in others):
            place.behind = others
        place.blind = not place.targets
        places.append(place)
    return places
