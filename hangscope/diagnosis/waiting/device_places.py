"""Where devices stand, as their backend counts, of ranks that are found to wait nowhere else.

The recorder does not ask NCCL whether an operation has finished; it copies NCCL's own counters into
the ring, a second late at most. What all members have issued and none has finished waits for those
of them that wait in something they issued before. Where nobody does, it waits for no rank: for
something else on a device, or for the network. Where some members left no ring, it may wait for
those.
"""

from __future__ import annotations

from collections.abc import Sequence

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.evidence import end_is_unseen
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.waiting.told import Told
from hangscope.trace.model import Trace


def device_places(
    trace: Trace, front: Frontiers, told: Told, places: Sequence[Place]
) -> list[Place]:
    """The oldest collectives that stand on devices; of several of one rank only the first.

    ``places``: where ranks are found to wait. Only groups with a member that does so nowhere count.
    """
    if any(facts.unobservable for facts in trace.ranks.values()):
        return []  # a captured operation is counted as issued, none of its replays as finished
    found = []
    waiting_since = _waiting_since(told, places) if told.counting else {}
    for group, pairs in front.of_group().items():
        ranks = front.rank[pairs].tolist()
        members = trace.groups[group].ranks
        lost = sorted(set(members) - set(ranks))
        if len(ranks) < 2 or not members or not told.counting.issuperset(ranks):
            continue
        if waiting_since.keys() >= set(ranks):
            continue
        if not told.recorded.isdisjoint(lost):
            continue
        issued, done = int(front.enqueued[pairs].min()), int(front.completed[pairs].max())
        if done >= issued or int(front.completed[pairs].min()) < 1:
            continue
        last = [told.row_of(group, rank, done) for rank in ranks]
        rows = [told.row_of(group, rank, done + 1) for rank in ranks]
        if min(rows) < 0 or not all(_counted_natively(trace, row) for row in last):
            continue
        if lost and not all(
            _all_counted(trace, front, a, b) for a, b in zip(last, rows, strict=True)
        ):
            continue
        behind = [
            rank
            for rank, row in zip(ranks, rows, strict=True)
            if waiting_since.get(rank, row) < row
        ]
        began_ns = int(trace.records["created_ns"][rows].min())
        found.append(
            Place(
                group,
                done + 1,
                [rank for rank in ranks if rank not in behind],
                row=rows[0],
                members=members,
                began_ns=began_ns,
                behind=behind,
                unknown=lost,
                counted=True,
            )
        )
    found.sort(key=lambda place: place.began_ns)
    first = []
    standing: set[int] = set()
    for place in found:
        if standing.isdisjoint(place.waiters):
            first.append(place)
        standing.update(place.waiters)
    return first


def _waiting_since(told: Told, places: Sequence[Place]) -> dict[int, int]:
    """Per rank that is found to wait the oldest record in which it does, -1 where it has none."""
    since: dict[int, int] = {}
    for place in places:
        for rank in place.waiters:
            row = place.half.row if place.half else told.row_of(place.group, rank, place.seq)
            since[rank] = min(since.get(rank, row), row)
    return since


def _counted_natively(trace: Trace, row: int) -> bool:
    """Whether only a backend can have counted an operation: nobody saw its end."""
    return row >= 0 and end_is_unseen(trace, row)


def _all_counted(trace: Trace, front: Frontiers, last: int, row: int) -> bool:
    """Whether a backend counts as finished all that a rank issued between two operations of it.

    Of sends, and of groups that have them, nobody counts what has ended: the device may stand in
    those.
    """
    between = trace.records[last + 1 : row]
    if not len(between):
        return True
    own = front.rank == between["rank"][0]
    done = dict(zip(front.group[own].tolist(), front.completed[own].tolist(), strict=True))
    issued = zip(between["group"].tolist(), between["collective_seq"].tolist(), strict=True)
    pairs = bool(front.p2p[last + 1 : row].any())
    return not pairs and all(seq <= done.get(group, 0) for group, seq in issued)
