"""After how long those who wait give up, as far as their records say."""

from __future__ import annotations

from typing import NamedTuple

from hangscope.diagnosis.context import Context

NEARLY = 0.9
"""Who has waited for this share of its timeout is about to give up, or has."""


class Timeouts(NamedTuple):
    """The timeouts (s) of what has not finished."""

    shortest_s: float
    longest_s: float


def recorded_timeouts(context: Context) -> Timeouts | None:
    """The timeouts of what has not finished; None where none of them is on record."""
    limits_ms = context.trace.records["timeout_ms"][context.front.unfinished]
    known_ms = limits_ms[limits_ms > 0]
    if not len(known_ms):
        return None
    return Timeouts(float(known_ms.min()) / 1000, float(known_ms.max()) / 1000)
