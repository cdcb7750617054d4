"""Sends and receives whose completion nobody observes: which of them have no other half.

On NCCL the halves between two ranks match in order and none completes without its partner. So if
both sides have all of them on record and one has issued fewer, the newest halves of the other side
wait.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.observability import hidden_ranks, unrecorded
from hangscope.diagnosis.records.frontier import Columns
from hangscope.diagnosis.records.kinds import is_on_host, is_sending, records_where
from hangscope.trace.model import Flag, State, Trace, flagged
from hangscope.trace.units import SECOND_NS


def with_unpaired_halves(trace: Trace) -> tuple[Trace, frozenset[int]]:
    """The trace with halves that have no other half marked unfinished, and their rows.

    In a running job this applies only to ranks that have issued nothing for the timeout: hosts run
    far ahead of each other, and a send may legally stay unmatched.
    """
    records = trace.records
    unseen = flagged(records["flags"], Flag.UNOBSERVED)
    if trace.live and unseen.any():
        newest = np.zeros(int(records["rank"].max()) + 1, np.int64)
        np.maximum.at(newest, records["rank"], records["created_ns"])
        still_ns = trace.observed_ns - newest[records["rank"]]
        unseen &= still_ns >= trace.timeout_s * SECOND_NS
    if not unseen.any():
        return trace, frozenset()
    rows = [row for row in _unpaired_halves(trace) if unseen[row]]
    if not rows:
        return trace, frozenset()
    batches = Columns(trace).batch_row[rows]  # a batch executes as a whole
    rows += np.unique(batches[batches >= 0]).tolist()
    records = records.copy()
    records["flags"][rows] &= ~np.uint16(Flag.UNOBSERVED)
    return replace(trace, records=records), frozenset(rows)


def _unpaired_halves(trace: Trace) -> list[int]:
    """Rows of the newest halves in each direction between two ranks, as many as one side has issued
    more than the other."""
    records = trace.records
    flags = records["flags"]
    rows = np.flatnonzero(
        flagged(flags, Flag.P2P)
        & ~flagged(flags, Flag.COALESCED_BATCH)
        & ~records_where(trace, is_on_host)
    )
    if not len(rows) or trace.missing_ranks or unrecorded(trace):
        return []
    seen = ~flagged(flags[rows], Flag.UNOBSERVED)
    if (seen | (records["state"][rows] == int(State.COMPLETED))).all():
        return []  # completions are recorded, and have been used
    if (records["peer"][rows] < 0).any():
        return []  # from any source: not recorded whose half it takes
    hidden = hidden_ranks(trace)
    rank = records["rank"][rows].astype(np.int64)
    peer = records["peer"][rows].astype(np.int64)
    sends = records_where(trace, is_sending, rows)
    span = int(max(rank.max(), peer.max())) + 1
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    channel = (records["group"][rows].astype(np.int64) * span + source) * span + target
    keys, of_row = np.unique(channel, return_inverse=True)
    surplus = np.bincount(of_row, np.where(sends, 1, -1), len(keys)).astype(np.int64)
    found: list[int] = []
    for index in np.flatnonzero(surplus).tolist():
        _, pair = divmod(int(keys[index]), span * span)
        if hidden.isdisjoint(divmod(pair, span)):
            ahead = rows[(of_row == index) & (sends == (surplus[index] > 0))]
            found += ahead[-abs(int(surplus[index])) :].tolist()
    return found
