"""How fast a job runs, and after what pause it counts as standing still."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hangscope.trace.model import Flag, Trace, flagged
from hangscope.trace.units import SECOND_NS

_SHORTEST_S = 2.0
_GAPS = 20
_CANDIDATES = 20


def standstill_s(trace: Trace) -> float:
    """A pause (s) without any operation that no moving job would show."""
    return min(trace.timeout_s, max(_SHORTEST_S, _GAPS * usual_gap_s(trace)))


def had_stalled_before(trace: Trace, since_ns: int, stopped_ns: int) -> bool:
    """Whether what began at ``since_ns`` had already stalled before a rank was stopped.

    Then whatever stopped the rank (a debugger attached to a hung rank, say) did not cause the hang.
    ``stopped_ns``: when the rank last ran.
    """
    return stopped_ns - since_ns > standstill_s(trace) * SECOND_NS


def longest_silence_s(trace: Trace) -> float:
    """The longest pause (s) so far in which no rank issued, finished or waited in anything.

    A job that has prepared data for two minutes before may do so again.
    """
    created, completed = trace.records["created_ns"], trace.records["completed_ns"]
    times = np.unique(np.concatenate([created[created > 0], completed[completed > 0]]))
    seen = (created > 0) & ~flagged(trace.records["flags"], Flag.UNOBSERVED)
    gaps = np.diff(times)
    for at in np.argsort(-gaps)[:_CANDIDATES].tolist():
        open_ = (completed > times[at]) | (completed <= 0)
        if not (seen & open_ & (created <= times[at])).any():
            return float(gaps[at]) / SECOND_NS
    return 0.0


def usual_gap_s(trace: Trace) -> float:
    """Median time between operations of one rank, in seconds."""
    created = trace.records["created_ns"]
    same = np.diff(trace.records["rank"]) == 0
    gaps = np.diff(created)[same]
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) / SECOND_NS if len(gaps) else 0.0


def last_moved_ns(trace: Trace) -> Mapping[int, int]:
    """Per rank when it last issued or finished an operation, or entered a phase."""
    latest = {
        rank: max(p.since_ns for p in facts.phases)
        for rank, facts in trace.ranks.items()
        if facts.phases and not facts.is_only_leaving
    }
    records = trace.records
    if not len(records):
        return latest
    ranks = records["rank"].astype(np.int64)
    newest = np.zeros(int(ranks.max()) + 1, np.int64)
    np.maximum.at(newest, ranks, np.maximum(records["created_ns"], records["completed_ns"]))
    for rank in np.flatnonzero(newest).tolist():
        latest[rank] = max(int(newest[rank]), latest.get(rank, 0))
    return latest
