"""The counters of ``pg_status``, whose meaning differs by backend and kind of operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hangscope.trace import clean
from hangscope.trace.flight_recorder.groups import GroupTable, match_status
from hangscope.trace.flight_recorder.hook_recorders import counts_op_ids, seq_of_op_id
from hangscope.trace.model import MEMBER_DTYPE, NONE, Flag, Records, State, flagged


def read_status(
    status: Any, table: GroupTable, records: Records, rank: int, native_gloo: bool
) -> Records:
    """One row per group with counters in ``pg_status``."""
    rows = []
    for group, numbers in _stated(status, table):
        enqueued, started, completed = (
            _number(numbers, what) for what in ("enqueued", "started", "completed")
        )
        rows.append((group, *_counters(enqueued, started, completed, group, records, native_gloo)))
    members = np.zeros(len(rows), MEMBER_DTYPE)
    for row, (group, enqueued, started, completed, pairs) in zip(members, rows, strict=True):
        row["rank"], row["group"] = rank, group
        row["enqueued"], row["started"], row["completed"] = enqueued, started, completed
        row["p2p_enqueued"] = pairs
    return members


def counts_all_groups(status: Any, records: Records) -> bool:
    """Whether a dump's only counters are the maximum over all of its groups.

    A backend's recorder keeps counters for each group that it has recorded. A dump made from
    profiler events (torch's CUPTI monitor) has a single row, whatever groups there are, which says
    nothing about any one group.
    """
    if not isinstance(status, Mapping):
        return False
    stated = sum(isinstance(value, Mapping) for value in status.values())
    return stated == 1 and len(np.unique(records["group"][records["collective_seq"] > 0])) > 1


def completed_p2p_rows(status: Any, table: GroupTable, records: Records) -> Any:
    """Rows of sends and receives that a group's counter shows to be complete.

    The counter tells about sends and receives if the group has no collectives, or if it is at the
    group's newest record and that is a send or receive. Then earlier operations with the same peer
    are complete too, as are those in earlier batches, which run one after another. Lower numbers
    prove nothing else: operations with different peers finish in any order.
    """
    half = flagged(records["flags"], Flag.P2P)
    batched = flagged(records["flags"], Flag.COALESCED_MEMBER)
    found = [np.zeros(0, np.int64)]
    for group, numbers in _stated(status, table):
        here = records["group"] == group
        done = _number(numbers, "completed")
        if done <= 0 or not here.any():
            continue
        newest = records[here][-1]
        stands = newest["p2p_seq"] == done == _number(numbers, "enqueued")
        stands &= bool(half[here][-1]) and newest["collective_seq"] != done
        if stands or (half[here] & (records["collective_seq"][here] <= 0)).all():
            last = here & half & (records["p2p_seq"] == done)
            with_them = np.isin(records["peer"], records["peer"][last & (records["peer"] >= 0)])
            with_them |= batched & (last & batched).any()
            earlier = half & (records["p2p_seq"] < done)
            found.append(np.flatnonzero(last | (here & with_them & earlier)))
    return np.concatenate(found)


def apply_counters(records: Records, members: Records) -> None:
    """Fill in states that entries lack from a group's counters, as far as these count them.

    Collectives of a group finish in order, so the counter has either reached a number or not. The
    same holds for the batches of a group with nothing but sends and receives; `completed_p2p_rows`
    has already marked the completed ones.

    Parameters
    ----------
    records:
        One rank's records; state and flags are changed in place.
    members:
        Its counters as returned by `read_status`; -1 where they count something else.
    """
    unknown = flagged(records["flags"], Flag.UNOBSERVED)
    if not unknown.any():
        return
    half = flagged(records["flags"], Flag.P2P)
    batched = flagged(records["flags"], Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH)
    over = records["state"] == State.COMPLETED
    counted = np.zeros(len(records), bool)
    for row in members:
        here = (records["group"] == row["group"]) & unknown
        if row["completed"] >= 0 and not half[here].any():
            counted |= here
            over |= here & (records["collective_seq"] <= row["completed"])
        elif (half & batched)[here].all() and over[here].any():
            counted |= here
    records["state"][over & counted] = State.COMPLETED
    records["flags"][counted] &= ~np.uint16(Flag.UNOBSERVED)


def _stated(status: Any, table: GroupTable) -> list[tuple[int, Mapping[str, Any]]]:
    """The counters in ``pg_status`` of each known group."""
    if not isinstance(status, Mapping):
        return []
    named = {clean.as_name(key): value for key, value in status.items()}
    counters = {k: v for k, v in named.items() if isinstance(v, Mapping)}
    where = match_status(list(counters), table)
    return [(where[key], value) for key, value in counters.items() if key in where]


def _number(numbers: Mapping[str, Any], what: str) -> int:
    return clean.as_int(numbers.get(f"last_{what}_collective"), NONE)


def _counters(
    enqueued: int, started: int, completed: int, group: int, records: Records, native_gloo: bool
) -> tuple[int, int, int, int]:
    """(enqueued, started, completed, p2p_enqueued) of one group.

    ``pg_status`` keeps one counter for both kinds: the sequence number of the last work, whether a
    collective or a send or receive. If the group's entries include sends or receives, only the
    entries show what it counts.
    """
    own = records[records["group"] == group]
    none = 0  # for the recorder's -1: nothing yet
    pairs = int(own["p2p_seq"].max()) if len(own) else NONE
    highest = int(own["collective_seq"].max()) if len(own) else NONE
    if native_gloo and len(own):
        # Gloo's counter includes sends and receives, which Gloo does not record; the difference
        # shows in op_id.
        last = own[-1]
        ahead = int(last["op_id"] - last["collective_seq"]) if last["op_id"] > 0 else 0
        done = completed - ahead if completed > 0 else none
        return highest, NONE, max(min(done, highest), 0), pairs
    if counts_op_ids(enqueued, own):
        return highest, NONE, seq_of_op_id(completed, own), pairs
    if len(own) and (pairs > 0 or (own["flags"] & Flag.P2P).any()):
        last = own[-1]
        if last["flags"] & Flag.P2P:
            return highest, NONE, NONE, max(pairs, enqueued)
        same = enqueued == highest
        # The last to finish may have been a send or receive: their numbers are ambiguous.
        done = completed if same and pairs < completed <= highest else NONE
        return highest, NONE, done, pairs
    if enqueued <= 0 and highest > 0:  # counters stay 0 with TORCH_NCCL_BLOCKING_WAIT
        return highest, NONE, NONE, pairs
    return (
        max(enqueued, highest, none),
        started if started >= 0 else NONE,
        max(completed, none),
        pairs,
    )
