"""When waiting ranks time out, according to their records."""

from __future__ import annotations

from typing import NamedTuple

from hangscope.diagnosis.context import Context

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
