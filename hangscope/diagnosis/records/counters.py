"""Counters of different meaning made one: old dumps, and operations that count twice.

Until dump version 2.0 a group had a single ``seq_id`` that sends and receives moved too. Those
differ legally between members, so collectives of such a group are numbered afresh, in order of
issue, wherever the records go back to the start. Gloo's monitored barrier moves its counter by two,
one for each message, and bears the second number: it stands where the first one is due.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.trace.model import Flag, Trace, flagged

_COUNTS_TWICE = "monitored_barrier"


def with_first_numbers(trace: Trace) -> Trace:
    """The trace with every operation that counts twice at the first of its numbers.

    There it meets what a member issued that did something else.
    """
    twice = np.array([s.op == _COUNTS_TWICE for s in trace.signatures] or [False], bool)
    if not twice.any():
        return trace
    records = trace.records.copy()
    rows = twice[records["signature"]] & (records["collective_seq"] > 1)
    rows &= ~flagged(records["flags"], Flag.SYNTHETIC)
    records["collective_seq"][rows] -= 1
    return replace(trace, records=records)


def with_own_counters(trace: Trace) -> Trace:
    """The trace with separate counters in every group that had a common one."""
    records = trace.records
    flags = records["flags"]
    p2p = flagged(flags, Flag.P2P)
    if not p2p.any():
        return trace
    groups = max(len(trace.groups), 1)
    used = np.zeros(groups, bool)
    used[records["group"][p2p]] = True
    own = np.zeros(groups, bool)
    own[records["group"][p2p & (records["p2p_seq"] > 0)]] = True
    shared = used & ~own
    rows = np.flatnonzero(shared[records["group"]])
    if not len(rows):
        return trace
    records = records.copy()
    is_pair = p2p[rows]
    old = records["collective_seq"][rows]
    records["p2p_seq"][rows[is_pair]] = old[is_pair]
    key = records["rank"][rows].astype(np.int64) * groups + records["group"][rows]
    order = np.argsort(key, kind="stable")
    member = flagged(flags[rows], Flag.COALESCED_MEMBER)
    counts = (~is_pair & ~member)[order].astype(np.int64)
    running = np.cumsum(counts)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(key[order])) + 1])
    before = np.concatenate([[0], running])[starts]
    length = np.diff(np.concatenate([starts, [len(order)]]))
    number = np.empty(len(rows), np.int64)
    number[order] = running - np.repeat(before, length)
    wrapped = np.array(
        [
            trace.ranks[r].oldest_record_id > 1 or trace.ranks[r].only_active
            if r in trace.ranks
            else True
            for r in records["rank"][rows].tolist()
        ],
        bool,
    )
    # Where the start is lost the numbers cannot be had: such rows are not aligned at all.
    records["collective_seq"][rows] = np.where(wrapped, 0, number)
    members = trace.members[~shared[trace.members["group"]]]  # counted with the old numbers
    return replace(trace, records=records, members=members)
