"""When the monitor takes a close look: soon after an event, rarely while nothing happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SETTLE_S = 0.6
"""Delay after a process ends: its peers need a moment to show the effect."""
FIRST_LOOK_S = 1.0
"""Time without progress before the first close look."""
CONFIRM_S = 0.5
"""Time between a look that finds something and the one that confirms it."""
MAX_INTERVAL_S = 5.0
_SHARE = 0.05
"""Largest share of a CPU that close looks may take, except around the timeout."""
_BEFORE_S, _AFTER_S, _AROUND_INTERVAL_S = 1.0, 3.0, 0.5
"""The time before the timeout without looks, the time after it with many, and their interval."""
_JUST_AFTER_S = 0.05


@dataclass(slots=True)
class LookSchedule:
    """When something last happened, and when to look next. Times (s) are on a monotonic clock.

    Parameters
    ----------
    timeout_s:
        ``HANGSCOPE_TIMEOUT``.
    changed_s:
        When any rank last made progress; initially the present time.
    """

    timeout_s: float
    changed_s: float
    _progress: Mapping[int, bytes] = field(default_factory=dict)
    _next_look_s: float = 0.0
    _settling_until_s: float = 0.0

    def update(self, progress: Mapping[int, bytes], now_s: float, *, ended: bool) -> None:
        """Take the ranks' present progress into account.

        Parameters
        ----------
        progress:
            For each rank, any value that changes when it issues or finishes an operation.
        now_s:
            The present time.
        ended:
            Whether any process has ended since the last call.
        """
        if ended:
            self._next_look_s = self._settling_until_s = now_s + SETTLE_S
        if progress == self._progress:
            return
        self._progress, self.changed_s = progress, now_s
        if not self._settling_until_s:
            # Some ranks may be stuck while others make progress, so look now and then anyway.
            self._next_look_s = min(max(self._next_look_s, now_s), now_s + FIRST_LOOK_S)

    def stalled_s(self, now_s: float, waiting_s: float) -> float:
        """How long there was no progress here, or the longest wait if that is longer."""
        return max(now_s - self.changed_s, waiting_s)

    def is_due(self, now_s: float) -> bool:
        """Whether a look is due."""
        return now_s >= self._next_look_s and now_s >= self._settling_until_s

    def looked(
        self,
        began_s: float,
        now_s: float,
        stalled_s: float,
        cost_s: float,
        *,
        urgent: bool = False,
    ) -> None:
        """A close look is done: schedule the next one.

        Parameters
        ----------
        began_s:
            When the look began.
        now_s:
            The present time.
        stalled_s:
            How long there has been no progress, at the end of the look.
        cost_s:
            CPU seconds the look took.
        urgent:
            Whether a finding waits to be confirmed, which no cost may delay.
        """
        self._settling_until_s = 0.0
        wait_s = self._interval_s(stalled_s, cost_s, max(cost_s, now_s - began_s))
        if urgent:  # what a long look has read is old enough already
            wait_s = min(CONFIRM_S, max(0.0, began_s + 2 * CONFIRM_S - now_s))
        self._next_look_s = now_s + wait_s

    def _interval_s(self, stalled_s: float, cost_s: float, took_s: float) -> float:
        """Time until the next look: one just after the timeout, and one that has ended by then."""
        remaining_s = self.timeout_s - stalled_s
        if -_AFTER_S < remaining_s <= 0:
            return max(_AROUND_INTERVAL_S, 2 * cost_s)
        wanted_s = min(MAX_INTERVAL_S, max(FIRST_LOOK_S, stalled_s / 4))
        wanted_s = max(wanted_s, cost_s / _SHARE)
        last_s = remaining_s - _BEFORE_S - 2 * took_s
        if 0 < last_s < wanted_s:
            return last_s
        if 0 < remaining_s < wanted_s + took_s + _BEFORE_S:
            return remaining_s + _JUST_AFTER_S
        return wanted_s
