"""Mentions a rank that is always late in a running job: rarely, and only if asked to."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.lateness.lateness import lateness
from hangscope.report.lateness import sentence
from hangscope.trace.clocks import align_clocks
from hangscope.trace.model import Trace

PERIOD_S = 600.0
"""No more than one mention in this time."""
FIRST_S = 60.0
"""The first steps of a job are not typical of it."""
NEWEST = 2000
"""How many of each rank's newest records are compared."""


@dataclass(slots=True)
class StragglerNews:
    """Whether, and when, stragglers were looked for.

    Parameters
    ----------
    enabled:
        ``HANGSCOPE_NOTICE`` is ``slow``.
    """

    enabled: bool = False
    _due_ns: int = 0

    def line(self, trace: Trace) -> str | None:
        """What the costliest straggler costs; None if it is not time, or nobody stands out."""
        now_ns = trace.observed_ns
        self._due_ns = self._due_ns or now_ns + int(FIRST_S * 1e9)
        if not self.enabled or now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + int(PERIOD_S * 1e9)
        found = lateness(align_clocks(trace), newest=NEWEST)
        return sentence(found.stragglers[0]) if found.stragglers else None
