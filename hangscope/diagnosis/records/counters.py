"""Gives counters one meaning: dumps with a shared counter, and operations that count twice.

Until dump version 2.0 a group had a single ``seq_id`` that sends and receives advanced too; groups
whose collectives are numbered along with other operations still do. Such numbers legally differ
between members, so the collectives of such a group are renumbered in order of issue wherever the
records go back to the start. Gloo's monitored barrier advances its counter by two, one per message,
and carries the second number: it is moved to the first one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.observability import shows_returns, unfinished_alone
from hangscope.trace.model import Flag, Trace, flagged

Bools = npt.NDArray[np.bool_]

_COUNTS_TWICE = "monitored_barrier"


def with_first_numbers(trace: Trace) -> Trace:
    """The trace with every operation that counts twice at its first number.

    There it meets whatever another member issued instead.
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
    """The trace with separate counters in every group that had a shared one."""
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
    shared = used & (~own | _moved_by_pairs(trace, p2p, groups))
    rows = np.flatnonzero(shared[records["group"]])
    if not len(rows):
        return trace
    records = records.copy()
    is_pair = p2p[rows]
    unnumbered = rows[is_pair & ~own[records["group"][rows]]]
    records["p2p_seq"][unnumbered] = records["collective_seq"][unnumbered]
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
    whole = [r for r, f in trace.ranks.items() if f.oldest_record_id <= 1]
    wrapped = ~np.isin(records["rank"][rows], sorted({*whole} - unfinished_alone(trace)))
    # If the start is lost, these numbers cannot be recovered: such rows are not aligned at all.
    records["collective_seq"][rows] = np.where(wrapped, 0, number)
    members = trace.members[~shared[trace.members["group"]]]  # counted with the old numbers
    return replace(trace, records=records, members=members)


def _moved_by_pairs(trace: Trace, p2p: Bools, groups: int) -> Bools:
    """Per group, whether sends and receives advance the counter of collectives.

    A recorder with two counters puts the number of the preceding collective on each half. Here, all
    halves and collectives of a member are numbered consecutively instead. Batches and lists with
    gaps prove nothing; our own rings have two counters.
    """
    records = trace.records
    inside = int(Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH | Flag.SYNTHETIC)
    gaps = np.isin(records["rank"], sorted(unfinished_alone(trace)))
    other = flagged(records["flags"], inside) | shows_returns(trace) | gaps
    excluded = np.zeros(groups, bool)
    excluded[records["group"][other]] = True
    rows = np.flatnonzero(~excluded[records["group"]])
    key = records["rank"][rows].astype(np.int64) * groups + records["group"][rows]
    rows = rows[np.argsort(key, kind="stable")]
    key.sort()
    number, half, group = records["collective_seq"][rows], p2p[rows], records["group"][rows]
    first = np.ones(len(rows), bool)
    first[1:] = key[1:] != key[:-1]
    whole = np.array([r for r, f in trace.ranks.items() if f.oldest_record_id <= 1], np.int64)
    next_one = np.ones(len(rows), bool)
    next_one[1:] = number[1:] == number[:-1] + 1
    # If records go back to the start, the first record is the first of its counter.
    begun = first & np.isin(records["rank"][rows], whole)
    next_one = np.where(first, ~begun | (number == 1), next_one)
    near_half = half.copy()
    near_half[1:] |= half[:-1] & ~first[1:]
    moved, against = np.zeros(groups, bool), np.zeros(groups, bool)
    moved[group[half & next_one & (~first | begun)]] = True
    against[group[near_half & ~next_one]] = True
    answer: Bools = moved & ~against
    return answer
