"""Operations that only seem to have finished: an aborted communicator lets go of all it held.

The watchdog of a rank that gives up waiting aborts its communicators; the kernels that waited end,
and a dump that is written after that calls them completed. Nobody had joined them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hangscope.trace.model import Flag, Records, State, flagged

_SECOND_NS = 10**9
_BURST_NS = 5 * _SECOND_NS
"""What was held ends within this time of each other; the watchdog looks every 0.1 s."""
_SILENCE_NS = 60 * _SECOND_NS
"""Shorter standstills are pauses of a job, unless its timeout is shorter still."""
_UNNOTED_NS = 20 * _SECOND_NS
"""The same where the recorder's own thread, which does not live on after giving up, has noted no
end of what ended then, while it noted those before."""
_JUST_BEFORE_NS = 10 * _SECOND_NS
"""A dump that was signalled by another rank is written within this time of the abort."""
_NEARLY = 0.9
"""Who ends later than this part of its timeout was ended by it."""


def let_go(records: Records, observed_ns: int) -> Any:
    """Rows of one rank that ended because the rank gave up waiting, not because all had come.

    They ended together, after a silence, with nothing issued since; and either one of them had
    waited for as long as its timeout, or the dump was written at that very moment, or nothing of it
    was retired: a watchdog that has given up retires nothing any more.

    Parameters
    ----------
    records:
        One rank's records; completion times in ns since the epoch, 0 where unknown.
    observed_ns:
        When the dump was written, 0 if unknown.
    """
    none = np.zeros(0, np.int64)
    ended = np.where(records["state"] == State.COMPLETED, records["completed_ns"], 0)
    if not len(records) or not ended.any():
        return none
    last = int(ended.max())
    burst = ended >= last - _BURST_NS
    began = int(ended[burst].min())
    issued = records["created_ns"]
    if not issued.any():
        return none  # no dump tells for how long nothing was issued
    before = max(int(issued.max()), int(ended[~burst].max(initial=0)))
    waited = np.where(issued[burst] > 0, ended[burst] - issued[burst], 0)
    limits = records["timeout_ms"][burst].astype(np.float64) * 1e6
    shortest = float(limits[limits > 0].min(initial=np.inf))
    noted = flagged(records["flags"], Flag.RETIRED)
    unnoted = bool(noted.any()) and not noted[burst].any()
    if began - before < min(_UNNOTED_NS if unnoted else _SILENCE_NS, _NEARLY * shortest):
        return none
    expired = bool(((limits > 0) & (waited >= _NEARLY * limits)).any())
    silent = began - before >= _SILENCE_NS
    if expired or (unnoted and silent) or 0 <= observed_ns - last <= _JUST_BEFORE_NS:
        return np.flatnonzero(burst)
    return none


def take_back(records: Records, members: Records, rows: Any) -> None:
    """Let the rows, and the counters that reached them, be as they were before the abort."""
    records["state"][rows] = np.where(
        records["started_ns"][rows] > 0, State.STARTED, State.SCHEDULED
    )
    records["completed_ns"][rows] = 0
    for group in np.unique(records["group"][rows]).tolist():
        here = rows[records["group"][rows] == group]
        reached = int(records["collective_seq"][here].min()) - 1
        mine = (members["group"] == group) & (members["completed"] > reached)
        members["completed"][mine] = reached
