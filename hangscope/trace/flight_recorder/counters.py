"""The counters of ``pg_status``: what they count differs by backend and by kind of operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hangscope.trace import clean
from hangscope.trace.flight_recorder.columns import snake_keys
from hangscope.trace.flight_recorder.groups import GroupTable, match_status
from hangscope.trace.flight_recorder.hook_recorders import counted_ids, number_of_id
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


def of_all_groups(status: Any, records: Records) -> bool:
    """Whether the only counters of a dump are the highest of all its groups together.

    A backend's recorder keeps counters for each group that it has recorded. What is written from
    a profiler's events (torch's CUPTI monitor) has one row, whatever groups there are: of a single
    group it tells nothing.
    """
    if not isinstance(status, Mapping):
        return False
    stated = sum(isinstance(value, Mapping) for value in status.values())
    return stated == 1 and len(np.unique(records["group"][records["collective_seq"] > 0])) > 1


def finished_halves(status: Any, table: GroupTable, records: Records) -> Any:
    """Rows of sends and receives that a group's counter has reached.

    The counter tells pairs where the group has no collectives, or where it stands at its newest
    record and that is a pair. What was issued before for the same partner is over too, and so is
    what was issued in earlier batches, which run one after the other. Of other numbers below it
    nothing is said: operations with several partners finish in any order.
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


def settle_by_counters(records: Records, members: Records) -> None:
    """Where entries do not tell their state, a group's counters do, as far as they count them.

    Collectives of a group finish in order: the counter has reached a number or has not. So do the
    batches of a group in which nothing but pairs was issued; `finished_halves` has marked those
    that are over.

    Parameters
    ----------
    records:
        One rank's records; state and flags are changed in place.
    members:
        Its counters as `read_status` gives them; -1 where they count something else.
    """
    unknown = flagged(records["flags"], Flag.UNOBSERVED)
    if not unknown.any():
        return
    half = flagged(records["flags"], Flag.P2P)
    batched = flagged(records["flags"], Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH)
    over = records["state"] == State.COMPLETED
    told = np.zeros(len(records), bool)
    for row in members:
        here = (records["group"] == row["group"]) & unknown
        if row["completed"] >= 0 and not half[here].any():
            told |= here
            over |= here & (records["collective_seq"] <= row["completed"])
        elif (half & batched)[here].all() and over[here].any():
            told |= here
    records["state"][over & told] = State.COMPLETED
    records["flags"][told] &= ~np.uint16(Flag.UNOBSERVED)


def _stated(status: Any, table: GroupTable) -> list[tuple[int, Mapping[str, Any]]]:
    """What ``pg_status`` holds of each group that is known."""
    if not isinstance(status, Mapping):
        return []
    named = {clean.as_name(key): value for key, value in status.items()}
    counters = {k: snake_keys(v) for k, v in named.items() if isinstance(v, Mapping)}
    where = match_status(list(counters), table)
    return [(where[key], value) for key, value in counters.items() if key in where]


def _number(numbers: Mapping[str, Any], what: str) -> int:
    return clean.as_int(numbers.get(f"last_{what}_collective", numbers.get(f"last_{what}")), NONE)


def _counters(
    enqueued: int, started: int, completed: int, group: int, records: Records, native_gloo: bool
) -> tuple[int, int, int, int]:
    """(enqueued, started, completed, p2p_enqueued) of one group.

    ``pg_status`` keeps one counter for both kinds: the sequence number of the last work, be it a
    collective or one half of a pair. Where the group's entries show pairs, only they can tell.
    """
    own = records[records["group"] == group]
    none = 0  # the recorder's -1: nothing yet
    pairs = int(own["p2p_seq"].max()) if len(own) else NONE
    highest = int(own["collective_seq"].max()) if len(own) else NONE
    if native_gloo and len(own):
        # Gloo's counter also counts pairs, which it does not record; op_id holds the difference.
        last = own[-1]
        ahead = int(last["op_id"] - last["collective_seq"]) if last["op_id"] > 0 else 0
        done = completed - ahead if completed > 0 else none
        return highest, NONE, max(min(done, highest), 0), pairs
    if counted_ids(enqueued, own):
        return highest, NONE, number_of_id(completed, own), pairs
    if len(own) and (pairs > 0 or (own["flags"] & Flag.P2P).any()):
        last = own[-1]
        if last["flags"] & Flag.P2P:
            return highest, NONE, NONE, max(pairs, enqueued)
        same = enqueued == highest
        # The last to finish may have been a pair: a number that pairs have reached tells nothing.
        done = completed if same and pairs < completed <= highest else NONE
        return highest, NONE, done, pairs
    if enqueued <= 0 and highest > 0:  # counters that do not move: TORCH_NCCL_BLOCKING_WAIT
        return highest, NONE, NONE, pairs
    return (
        max(enqueued, highest, none),
        started if started >= 0 else NONE,
        max(completed, none),
        pairs,
    )
