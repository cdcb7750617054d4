"""Where devices are stuck according to their backend's counters, for ranks not found waiting
elsewhere.

The recorder does not ask NCCL whether an operation has finished; it copies NCCL's own counters into
the ring, at most a second late. A collective that nobody has finished waits for the members that
have not issued it (even where a rank could finish alone, like the root of a broadcast), or else for
members that wait in something they issued earlier. Without any of these it waits for no rank but
for something else on a device, or for the network. If some members left no ring, it may wait for
those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.coverage import counted_by_backend
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.waiting.collective_facts import CollectiveFacts
from hangscope.trace.model import Trace


def device_places(
    trace: Trace, front: Frontiers, collectives: CollectiveFacts, places: Sequence[Place]
) -> list[Place]:
    """Where devices are stuck; each rank waits in its oldest such collective.

    ``places``: where ranks are already known to wait. Only groups with a member that waits nowhere
    count.
    """
    if not collectives.counting or any(facts.unobservable for facts in trace.ranks.values()):
        # A captured operation counts as issued, but none of its graph replays counts as finished.
        return []
    groups = {place.group for place in places if place.half is None}
    unfinished = [
        (place, rows)
        for place, rows in _unfinished(trace, front, collectives)
        if not (place.absent and place.group in groups)
    ]
    oldest = _waiting_since(collectives, places)
    elsewhere = frozenset(oldest)
    for _, rows in unfinished:
        for rank, row in rows.items():
            oldest[rank] = min(oldest.get(rank, row), row)
    found = []
    for place, rows in unfinished:
        waiters = tuple(rank for rank, row in rows.items() if oldest[rank] == row)
        if not elsewhere.issuperset(waiters):
            behind = tuple(rank for rank in rows if rank not in waiters)
            found.append(replace(place, waiters=waiters, behind=behind))
    return sorted(found, key=lambda place: place.began_ns)


def _unfinished(
    trace: Trace, front: Frontiers, collectives: CollectiveFacts
) -> Iterator[tuple[Place, dict[int, int]]]:
    """Per group the oldest collective that no member which issued it has finished, with the row of
    each of these; members without a ring are unknown."""
    for group, pairs in front.of_group().items():
        ranks = front.rank[pairs].tolist()
        members = trace.groups[group].ranks
        lost = sorted(set(members) - set(ranks))
        if len(ranks) < 2 or not members or not collectives.counting.issuperset(ranks):
            continue
        if not collectives.recorded.isdisjoint(lost):
            continue
        issued = dict(zip(ranks, front.enqueued[pairs].tolist(), strict=True))
        counted = dict(zip(ranks, front.completed[pairs].tolist(), strict=True))
        done = max(counted.values())
        came = [rank for rank in ranks if issued[rank] > done]
        if not came or min(counted[rank] for rank in came) < 1:
            continue
        last = [collectives.row_of(group, rank, done) for rank in came]
        rows = [collectives.row_of(group, rank, done + 1) for rank in came]
        if min(rows) < 0 or not all(counted_by_backend(trace, row) for row in last):
            continue
        absent = tuple(rank for rank in ranks if issued[rank] <= done)
        sure = not absent and not lost
        if not sure and not all(
            _all_counted(trace, front, a, b) for a, b in zip(last, rows, strict=True)
        ):
            continue
        place = Place(
            group,
            done + 1,
            tuple(came),
            row=rows[0],
            members=members,
            began_ns=int(trace.records["created_ns"][rows].min()),
            absent=absent,
            unknown=tuple(lost),
            counted=True,
        )
        yield place, dict(zip(came, rows, strict=True))


def _waiting_since(collectives: CollectiveFacts, places: Sequence[Place]) -> dict[int, int]:
    """Per waiting rank, the oldest row it waits in; -1 if it has none."""
    since: dict[int, int] = {}
    for place in places:
        for rank in place.waiters:
            row = place.half.row if place.half else collectives.row_of(place.group, rank, place.seq)
            since[rank] = min(since.get(rank, row), row)
    return since


def _all_counted(trace: Trace, front: Frontiers, last: int, row: int) -> bool:
    """Whether the backend counts everything that a rank issued between two of its operations as
    finished.

    Nothing counts the completions of sends, nor of groups that use them: the device may be stuck in
    one of those.
    """
    between = trace.records[last + 1 : row]
    if not len(between):
        return True
    own = front.rank == between["rank"][0]
    done = dict(zip(front.group[own].tolist(), front.completed[own].tolist(), strict=True))
    issued = zip(between["group"].tolist(), between["collective_seq"].tolist(), strict=True)
    pairs = bool(front.p2p[last + 1 : row].any())
    return not pairs and all(seq <= done.get(group, 0) for group, seq in issued)
