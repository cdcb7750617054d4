"""When waiting ranks time out, according to their records."""

from __future__ import annotations

from typing import NamedTuple

from hangscope.diagnosis.context import Context

SLOW_S = 60.0
"""A rank that saves, loads or compiles may keep the others waiting this long."""
_FAR, _HOUR_S = 3, 3600.0
_USUAL = (600.0, 1800.0)
"""The shortest and the longest default timeout (s) torch ever had."""
NEARLY = 0.9
"""A rank that has waited for this share of its timeout is about to time out, or has."""


class Timeouts(NamedTuple):
    """Timeouts (s) of unfinished operations."""

    shortest_s: float
    longest_s: float


def recorded_timeouts(context: Context) -> Timeouts | None:
    """The timeouts of unfinished operations; None if none is recorded."""
    limits_ms = context.trace.records["timeout_ms"][context.front.unfinished]
    known_ms = limits_ms[limits_ms > 0]
    if not len(known_ms):
        return None
    return Timeouts(float(known_ms.min()) / 1000, float(known_ms.max()) / 1000)


def is_beyond_any_timeout(context: Context, waited_s: float) -> bool:
    """Whether somebody would have timed out long before: files that were copied are dated so."""
    limits = recorded_timeouts(context) or Timeouts(*_USUAL)
    return waited_s > _FAR * limits.longest_s + _HOUR_S
