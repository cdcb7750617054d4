"""Doubts where no source shows what has finished: native Gloo, and counters of a backend."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.observability import lacks_pairs
from hangscope.trace.model import Flag, State, flagged

_HIDDEN = int(Flag.UNOBSERVED)


def counters_only(context: Context, cause: Cause) -> str:
    """Only a backend's counters show what has not finished."""
    counted = [place.counted for place in context.waits.at(cause.places)]
    cycle = cause.verdict is Verdict.DEADLOCK_CYCLE and any(counted)
    missing = cause.verdict is Verdict.MISSING_RANK and bool(counted) and all(counted)
    stuck = cause.verdict is Verdict.STUCK_COLLECTIVE and any(counted)
    if not (cycle or missing or stuck):
        return ""
    return "only the backend's counters show what has not finished"


def end_unrecorded(context: Context, cause: Cause) -> str:
    """No source shows that a collective which everybody has reached is unfinished."""
    if not cause.places:
        return ""
    places = context.waits.at(cause.places)
    native = without_pairs(context, places[0].waiters)
    unobserved = native and all(_is_hidden(context, place.row) for place in places)
    if unobserved or _may_be_held_up(context, places):
        return "what has finished is not recorded"
    return ""


def pairs_unrecorded(context: Context, cause: Cause) -> str:
    """The accused may wait in a send or receive, which Gloo's own recorder omits."""
    if not cause.places or not without_pairs(context, cause.culprits):
        return ""
    return "this recorder does not record sends and receives: that rank may wait in one"


def last_end_unrecorded(context: Context, cause: Cause) -> str:
    """An accused rank may wait in its last operation, in a different group than it is waited for
    in."""
    records = context.trace.records
    groups = {place.group for place in context.waits.at(cause.places)}
    last = [row for rank in cause.culprits if (row := context.last_row(rank)) >= 0]
    for row in last:
        pair = int(records["flags"][row]) & int(Flag.P2P)
        if _is_hidden(context, row) and (int(records["group"][row]) not in groups or pair):
            return "whether the last operation of the accused has finished"
    return ""


def one_of_several(context: Context, cause: Cause) -> str:
    """Among several ranks whose last operation may not have finished, any may wait for another."""
    if len(cause.culprits) < 2:
        return ""
    return last_end_unrecorded(context, cause) or pairs_unrecorded(context, cause)


def sends_before(context: Context, cause: Cause) -> str:
    """If all ranks send before they receive, and sends wait for their receivers, all wait in a
    cycle."""
    sends = {p.half.rank: p.row for p in context.waits.places if p.weak and p.half is not None}
    behind = any(
        sends.get(rank, row) < row
        for place in context.waits.at(cause.places)
        for rank in place.waiters
        for row in [place.row if place.p2p else context.row_of(place.group, rank, place.seq)]
    )
    if cause.culprits or not behind:
        return ""
    return "sends that were issued before have not finished either: they may wait in a cycle"


def _is_hidden(context: Context, row: int) -> bool:
    return row < 0 or bool(int(context.trace.records["flags"][row]) & _HIDDEN)


def _may_be_held_up(context: Context, places: list[Place]) -> bool:
    """Whether a waiter has an earlier operation of which no completion was recorded."""
    records = context.trace.records
    hidden = flagged(records["flags"], Flag.UNOBSERVED)
    if not hidden.any():
        return False
    hidden &= records["state"] != int(State.COMPLETED)
    for place in places:
        for rank in place.waiters:
            low, high = context.bounds.get(rank, (0, 0))
            part = records[low:high]
            here = part["group"] == place.group
            own = np.flatnonzero(here & (part["collective_seq"] == place.seq))
            before = int(own[0]) if len(own) else len(part)
            if (hidden[low:high] & ~here)[:before].any():
                return True
    return False


def without_pairs(context: Context, ranks: tuple[int, ...]) -> bool:
    """Whether all that is known of the ranks is a record that lacks sends and receives."""
    trace = context.trace
    for rank in ranks:
        low, high = context.bounds.get(rank, (0, 0))
        process = context.processes.get(rank)
        if low == high or process is None or process.state != "unknown" or process.stack:
            return False
        if not lacks_pairs(trace, trace.records[low:high]):
            return False
    return True
