"""What a rank's records cover: how far back they go, and which ranks left none."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.observability import end_is_unseen, unfinished_alone
from hangscope.diagnosis.records.frontier import Frontiers, Ints
from hangscope.trace.facts import UNRECORDED
from hangscope.trace.model import NONE, Flag, Trace, flagged

_NO_ORDER_NS = 10**9

Bounds = dict[int, tuple[int, int]]
"""Each rank's slice of the records."""


def collective_row(
    trace: Trace, front: Frontiers, bounds: Bounds, group: int, rank: int, seq: int
) -> int:
    """The row of a rank's collective, given its sequence number in the group, or -1."""
    low, high = bounds.get(rank, (0, 0))
    part = trace.records[low:high]
    here = (part["group"] == group) & (part["collective_seq"] == seq)
    hits = np.flatnonzero(here & front.collective[low:high])
    return int(low + hits[0]) if len(hits) else NONE


def overrun_ranks(trace: Trace, front: Frontiers) -> frozenset[int]:
    """Ranks whose oldest unfinished operation may be overwritten.

    Either their oldest remaining record is unfinished, or a group's counter implies unfinished
    operations older than any record.
    """
    ranks = trace.records["rank"]
    if not len(ranks):
        return frozenset()
    first = np.concatenate([[0], np.flatnonzero(np.diff(ranks)) + 1])
    open_first = front.unfinished[first]
    in_part = unfinished_alone(trace)
    return _counted_but_gone(trace, front) | frozenset(
        rank
        for rank, unfinished in zip(ranks[first].tolist(), open_first.tolist(), strict=True)
        if unfinished
        and rank in trace.ranks
        and trace.ranks[rank].oldest_record_id > 1
        and rank not in in_part
    )


def _counted_but_gone(trace: Trace, front: Frontiers) -> frozenset[int]:
    """Ranks with a group whose oldest unfinished collective is counted but not recorded."""
    members = trace.members
    behind = (members["completed"] >= 0) & (members["enqueued"] > members["completed"])
    if not behind.any():
        return frozenset()
    gone = front.first > front.completed + 1
    first = dict(
        zip(
            zip(front.rank[gone].tolist(), front.group[gone].tolist(), strict=True),
            front.first[gone].tolist(),
            strict=True,
        )
    )
    return frozenset(
        int(m["rank"])
        for m in members[behind]
        if first.get((int(m["rank"]), int(m["group"])), 0) > int(m["completed"]) + 1
        and int(m["rank"]) in trace.ranks
        and trace.ranks[int(m["rank"])].oldest_record_id > 1
    )


def rank_bounds(trace: Trace) -> Bounds:
    """Each rank's slice of the records."""
    ranks = np.ascontiguousarray(trace.records["rank"])
    if not len(ranks):
        return {}
    cuts = np.flatnonzero(np.diff(ranks)) + 1
    starts = np.concatenate([[0], cuts])
    ends = np.concatenate([cuts, [len(ranks)]])
    slices = zip(starts.tolist(), ends.tolist(), strict=True)
    return dict(zip(ranks[starts].tolist(), slices, strict=True))


def known_ranks(trace: Trace) -> frozenset[int]:
    """All ranks, also those of which only the world size, the groups or gaps in the numbering show
    that they exist."""
    shown = {*trace.ranks, *trace.missing_ranks}
    return frozenset(shown.union(range(max(shown, default=0) + 1)))


def gaps(trace: Trace) -> tuple[int, ...]:
    """The `known_ranks` that left nothing."""
    return tuple(sorted(known_ranks(trace) - trace.ranks.keys()))


def lacks_last_rank(trace: Trace) -> bool:
    """Whether there must be a rank beyond the last one known.

    Hardly any job has an odd number of ranks. This counts only if nothing states how many there
    are.
    """
    total = len(known_ranks(trace))
    stated = any(facts.world_size for facts in trace.ranks.values())
    return total > 1 and total % 2 == 1 and not stated


def could_not_be_recorded(trace: Trace) -> dict[int, str]:
    """Ranks that reported that they could not be recorded, and why."""
    return {r: c.text for c in trace.claims if c.kind == UNRECORDED for r in c.accused}


def unlisted(trace: Trace) -> tuple[int, ...]:
    """Those of `gaps` that no group lists; genuine member lists would name them at least once."""
    listed = {r for g in trace.groups for r in g.ranks}
    return tuple(r for r in gaps(trace) if r not in listed)


def without_order(trace: Trace) -> frozenset[int]:
    """Ranks for which a log reports waits in several groups but not where they arrived first.

    A watchdog prints to the millisecond since when an operation has been running, but each group's
    watchdog prints at its own time.
    """
    records = trace.records
    rows = np.flatnonzero(flagged(records["flags"], Flag.SYNTHETIC) & (records["created_ns"] > 0))
    rows = rows[np.lexsort((records["created_ns"][rows], records["rank"][rows]))]
    one, next_ = records[rows[:-1]], records[rows[1:]]
    close = next_["created_ns"] - one["created_ns"] < _NO_ORDER_NS
    close &= (one["rank"] == next_["rank"]) & (one["group"] != next_["group"])
    return frozenset(one["rank"][close].tolist())


def counted_by_backend(trace: Trace, row: int) -> bool:
    """Whether a counter at this record (-1: none) is the backend's own: nothing else observes the
    end."""
    return row != NONE and end_is_unseen(trace, row)


def counts_as_unfinished(trace: Trace, front: Frontiers, row: int, low: int, pairs: Ints) -> bool:
    """Whether the backend counts the collective in a rank's newest record as unfinished.

    The record that the counter points to must be a device's, too: then the counter is the backend's
    own rather than one derived from completions that the recorder saw.

    Parameters
    ----------
    row, low:
        The rank's newest record, and its oldest.
    pairs:
        The rank's rows of ``front``.
    """
    if front.p2p[row] or not end_is_unseen(trace, row):
        return False
    record, older = trace.records[row], trace.records[low:row]
    done = int(front.completed[pairs[front.group[pairs] == record["group"]]][0])
    here = (older["group"] == record["group"]) & (older["collective_seq"] == done)
    counted = low + np.flatnonzero(here & front.collective[low:row])
    last = int(counted[0]) if len(counted) else NONE
    return counted_by_backend(trace, last) and 0 < done < int(record["collective_seq"])
