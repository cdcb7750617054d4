"""How fast a job goes, and after how long a pause it stands still."""

from __future__ import annotations

import numpy as np

from hangscope.trace.model import Trace

_SHORTEST_S = 2.0
_GAPS = 20
_SECOND_NS = 1_000_000_000


def standstill_s(trace: Trace) -> float:
    """Seconds without any operation that no job which was moving would let pass."""
    return min(trace.timeout_s, max(_SHORTEST_S, _GAPS * usual_gap_s(trace)))


def stood_before(trace: Trace, since_ns: int, stopped_ns: int) -> bool:
    """Whether what began at ``since_ns`` had stood still before a rank was stopped.

    Then it is no doing of whoever stopped it: a debugger, say, that looks at a rank that hangs.
    ``stopped_ns``: when that rank last ran.
    """
    return stopped_ns - since_ns > standstill_s(trace) * _SECOND_NS


def usual_gap_s(trace: Trace) -> float:
    """Median time between operations of one rank, in seconds."""
    created = trace.records["created_ns"]
    same = np.diff(trace.records["rank"]) == 0
    gaps = np.diff(created)[same]
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) / _SECOND_NS if len(gaps) else 0.0
