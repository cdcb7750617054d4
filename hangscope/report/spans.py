"""Start and end of each recorded operation on one clock, as plain numpy columns.

Sources differ in what they know about an operation's end. Here every row gets a start and an end
that can be drawn, and how reliable the end is. Clock offsets are applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import Flag, State, Trace, flagged

Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]


class End(IntEnum):
    """How an operation ended."""

    SEEN = 0
    """At a recorded time."""
    ASSUMED = 1
    """It ended, or may have ended; the time was not recorded."""
    OPEN = 2
    """It has not ended: it still waits, or it timed out."""


@dataclass(frozen=True, slots=True)
class Spans:
    """One row for each row of `Trace.records`; times in ns since the epoch, reference clock."""

    start_ns: Int64
    end_ns: Int64
    end: UInt8
    """`End` values."""
    first_ns: int
    """The earliest start; 0 without records."""
    last_ns: int
    """End of the picture: the time of observation, or the latest time in the records."""


_LATEST = 2**62
"""ns since the epoch, in the year 2116; later times are damaged data."""
_NO_END = int(Flag.UNOBSERVED | Flag.COALESCED_MEMBER | Flag.SYNTHETIC)


def spans(trace: Trace) -> Spans:
    """Starts, ends and kinds of end of all records of `trace`; no Python loop over records."""
    records = trace.records
    if not len(records):
        empty = np.zeros(0, np.int64)
        last_ns = trace.observed_ns if 0 < trace.observed_ns < _LATEST else 0
        return Spans(empty, empty, np.zeros(0, np.uint8), 0, last_ns)
    offset = _offsets(trace)
    created, completed = _sane(records["created_ns"]), _sane(records["completed_ns"])
    start = np.where(created > 0, created, _sane(records["started_ns"]))
    start = np.where(start > 0, start, completed)
    known = start > 0
    start = np.where(known, start + offset, 0)
    completed = np.where(completed > 0, completed + offset, 0)
    latest = int(max(start.max(), completed.max()))
    last_ns = max(trace.observed_ns if trace.observed_ns < _LATEST else 0, latest)

    done = (records["state"] == State.COMPLETED) | (completed > 0) | _counted_done(trace)
    timed_out = flagged(records["flags"], Flag.TIMED_OUT)
    unsure = flagged(records["flags"], _NO_END) & ~timed_out
    end_kind = np.full(len(records), End.OPEN, np.uint8)
    end_kind[done | unsure] = End.ASSUMED
    end_kind[completed > 0] = End.SEEN
    end_kind[~known & (end_kind == End.OPEN)] = End.ASSUMED

    end = np.where(end_kind == End.SEEN, completed, last_ns)
    assumed = np.flatnonzero(end_kind == End.ASSUMED)
    if len(assumed):
        end[assumed] = _next_start(trace, start, last_ns)[assumed]
    end = np.maximum(end, start)
    first = int(start[known].min()) if known.any() else last_ns
    return Spans(start, end, end_kind, first, last_ns)


def _sane(times: Int64) -> Int64:
    """`times` with impossible values set to 0, "unknown", so that no sum overflows."""
    times = np.ascontiguousarray(times)
    if int(times.min()) >= 0 and int(times.max()) < _LATEST:
        return times
    return np.where((times > 0) & (times < _LATEST), times, 0)


def _offsets(trace: Trace) -> Int64 | np.int64:
    """The clock offset of each row's rank, ns; one number where all have the same clock."""
    facts = trace.ranks
    if not any(f.clock_offset_ns for f in facts.values()):
        return np.int64(0)
    ranks, inverse = np.unique(trace.records["rank"], return_inverse=True)
    far = 10**9 * 86400 * 365
    table = [
        min(max(facts[r].clock_offset_ns, -far), far) if r in facts else 0 for r in ranks.tolist()
    ]
    return np.asarray(table, np.int64)[inverse]


def _counted_done(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of rows that are complete according to their group's counter."""
    records, members = trace.records, trace.members
    done = np.zeros(len(records), bool)
    members = members[members["completed"] > 0]
    if not len(members):
        return done
    width = max(len(trace.groups), 1)
    key = members["rank"].astype(np.int64) * width + members["group"]
    order = np.argsort(key, kind="stable")
    key, completed = key[order], members["completed"][order]
    wanted = records["rank"].astype(np.int64) * width + records["group"]
    at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    p2p = flagged(records["flags"], Flag.P2P)
    found = (key[at] == wanted) & ~p2p & (records["collective_seq"] > 0)
    done[found] = records["collective_seq"][found] <= completed[at[found]]
    return done


def _next_start(trace: Trace, start: Int64, last_ns: int) -> Int64:
    """For each row, the start of the next one of the same rank and group, else a moment later."""
    records = trace.records
    order = np.lexsort((start, records["group"], records["rank"]))
    rank, group, begin = records["rank"][order], records["group"][order], start[order]
    following = np.minimum(begin + 1000, last_ns)
    if len(order) > 1:
        same = (rank[1:] == rank[:-1]) & (group[1:] == group[:-1])
        following[:-1] = np.where(same, begin[1:], following[:-1])
    out = np.empty_like(start)
    out[order] = following
    return out
