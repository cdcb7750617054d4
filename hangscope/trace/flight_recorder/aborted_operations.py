"""Detects operations that only seem to have finished because their communicator was aborted.

A watchdog that gives up waiting aborts its communicators. The waiting kernels then end, and a dump
written afterwards calls their operations completed although not all members had joined.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hangscope.trace.model import Flag, Records, State, flagged
from hangscope.trace.units import SECOND_NS

_BURST_NS = 5 * SECOND_NS
"""Aborted operations end within this time of each other; the watchdog polls every 0.1 s."""
_SILENCE_NS = 60 * SECOND_NS
"""Shorter standstills are pauses of the job, unless its timeout is shorter still."""
_UNNOTED_NS = 20 * SECOND_NS
"""The same if the recorder's own thread, which stops once the watchdog has given up, recorded no
end for what ended then although it had recorded earlier ends."""
_JUST_BEFORE_NS = 10 * SECOND_NS
"""A dump triggered by another rank is written within this time of the abort."""
_TIMEOUT_SHARE = 0.9
"""An operation that ends later than this share of its timeout was ended by the timeout."""


def ended_by_abort(records: Records, observed_ns: int) -> Any:
    """Rows of one rank that ended because the rank gave up waiting, not because all had joined.

    They ended together, after a silence, and nothing was issued since. In addition, one of them had
    waited for its whole timeout, or the dump was written at that very moment, or none of them was
    retired (a watchdog that has given up no longer retires operations).

    Parameters
    ----------
    records:
        One rank's records; completion times in ns since the epoch, 0 if unknown.
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
        return none  # the length of the silence is unknown
    before = max(int(issued.max()), int(ended[~burst].max(initial=0)))
    waited = np.where(issued[burst] > 0, ended[burst] - issued[burst], 0)
    limits = records["timeout_ms"][burst].astype(np.float64) * 1e6
    shortest = float(limits[limits > 0].min(initial=np.inf))
    noted = flagged(records["flags"], Flag.RETIRED)
    unnoted = bool(noted.any()) and not noted[burst].any()
    if began - before < min(_UNNOTED_NS if unnoted else _SILENCE_NS, _TIMEOUT_SHARE * shortest):
        return none
    expired = bool(((limits > 0) & (waited >= _TIMEOUT_SHARE * limits)).any())
    silent = began - before >= _SILENCE_NS
    if expired or (unnoted and silent) or 0 <= observed_ns - last <= _JUST_BEFORE_NS:
        return np.flatnonzero(burst)
    return none


def mark_unfinished(records: Records, members: Records, rows: Any) -> None:
    """Reset the rows, and the counters that reached them, to their state before the abort."""
    records["state"][rows] = np.where(
        records["started_ns"][rows] > 0, State.STARTED, State.SCHEDULED
    )
    records["completed_ns"][rows] = 0
    for group in np.unique(records["group"][rows]).tolist():
        here = rows[records["group"][rows] == group]
        reached = int(records["collective_seq"][here].min()) - 1
        mine = (members["group"] == group) & (members["completed"] > reached)
        members["completed"][mine] = reached
