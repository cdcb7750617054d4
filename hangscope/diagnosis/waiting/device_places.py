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

from collections.abc import Sequence
from dataclasses import dataclass

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.coverage import counted_by_backend
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.waiting.collective_facts import CollectiveFacts
from hangscope.trace.model import Trace


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A collective that no member which issued it has finished."""

    group: int
    seq: int
    rows: dict[int, int]
    """Per member that has issued it, the row."""
    absent: list[int]
    """Members that have not issued it."""
    lost: list[int]
    """Members without a ring."""


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
        one
        for one in _unfinished(trace, front, collectives)
        if not (one.absent and one.group in groups)
    ]
    if not unfinished:
        return []
    oldest = _waiting_since(collectives, places)
    elsewhere = frozenset(oldest)
    for one in unfinished:
        for rank, row in one.rows.items():
            oldest[rank] = min(oldest.get(rank, row), row)
    found = []
    for one in unfinished:
        waiters = tuple(rank for rank, row in one.rows.items() if oldest[rank] == row)
        if elsewhere.issuperset(waiters):
            continue
        rows = list(one.rows.values())
        found.append(
            Place(
                one.group,
                one.seq,
                waiters,
                row=rows[0],
                members=trace.groups[one.group].ranks,
                began_ns=int(trace.records["created_ns"][rows].min()),
                absent=tuple(one.absent),
                behind=tuple(rank for rank in one.rows if rank not in waiters),
                unknown=tuple(one.lost),
                counted=True,
            )
        )
    return sorted(found, key=lambda place: place.began_ns)


def _unfinished(trace: Trace, front: Frontiers, collectives: CollectiveFacts) -> list[_Unfinished]:
    """The oldest such collective of each group."""
    found = []
    for group, pairs in front.of_group().items():
        ranks = front.rank[pairs].tolist()
        members = trace.groups[group].ranks
        lost = sorted(set(members) - set(ranks))
        if len(ranks) < 2 or not members or not collectives.counting.issuperset(ranks):
            continue
        if not collectives.recorded.isdisjoint(lost):
            continue
        issued = dict(zip(ranks, front.enqueued[pairs].tolist(), strict=True))
        done = int(front.completed[pairs].max())
        came = [rank for rank in ranks if issued[rank] > done]
        counted = dict(zip(ranks, front.completed[pairs].tolist(), strict=True))
        if not came or min(counted[rank] for rank in came) < 1:
            continue
        last = [collectives.row_of(group, rank, done) for rank in came]
        rows = [collectives.row_of(group, rank, done + 1) for rank in came]
        if min(rows) < 0 or not all(counted_by_backend(trace, row) for row in last):
            continue
        absent = [rank for rank in ranks if issued[rank] <= done]
        sure = not absent and not lost
        if not sure and not all(
            _all_counted(trace, front, a, b) for a, b in zip(last, rows, strict=True)
        ):
            continue
        found.append(_Unfinished(group, done + 1, dict(zip(came, rows, strict=True)), absent, lost))
    return found


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
