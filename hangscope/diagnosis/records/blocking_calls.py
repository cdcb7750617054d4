"""Blocking operations: if the caller moved on, they have finished, whatever the record says."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.observability import shows_returns
from hangscope.diagnosis.records.kinds import is_on_host, records_where
from hangscope.trace.model import Flag, State, Trace, flagged

Bools = npt.NDArray[np.bool_]


def blocks_caller(trace: Trace) -> Bools:
    """Per record: whether the operation returned to its caller only once it had finished.

    Not every recorder notes which operations were asynchronous; of others nothing is known.
    """
    records = trace.records
    flags = records["flags"]
    loose = int(Flag.ASYNC | Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH | Flag.TIMED_OUT)
    # Sends and receives only if marked as blocking: isend and send may leave the same record.
    pair = flags & int(Flag.P2P | Flag.BLOCKING)
    found: Bools = records_where(trace, is_on_host) & ~flagged(flags, loose)
    found &= pair != int(Flag.P2P)
    return found & shows_returns(trace)


def returned(trace: Trace) -> Bools:
    """Blocking operations whose caller moved on: they have finished."""
    records = trace.records
    if not len(records):
        return np.zeros(0, bool)
    waits = blocks_caller(trace) & (records["state"] != int(State.COMPLETED))
    found = np.zeros(len(records), bool)
    rows = np.flatnonzero(waits)
    # Only later operations of the same thread count: a heartbeat thread goes on while the main
    # thread waits. Records are sorted by rank.
    rank = np.ascontiguousarray(records["rank"])
    last = np.searchsorted(rank, rank[rows], "right") - 1
    same = records["thread"][last] == records["thread"][rows]
    found[rows[same]] = (rows < last)[same]
    rows = rows[~same]
    wanted = np.unique(rank[rows])
    ends = np.searchsorted(rank, wanted, "right").tolist()
    for first, end in zip(np.searchsorted(rank, wanted).tolist(), ends, strict=True):
        threads, from_end = np.unique(records["thread"][first:end][::-1], return_index=True)
        own = rows[(rows >= first) & (rows < end)]
        newest = end - 1 - from_end[np.searchsorted(threads, records["thread"][own])]
        found[own] = own < newest
    return found
