"""Detects that this machine's wall clock was set.

Rings hold issue times as wall-clock times. If the clock is set ahead by an hour, every pending
operation seems to have waited for an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S = 2.0
"""NTP slews a clock by less than a thousandth; a larger change between two looks is a step."""
_AT_ONCE_S = 0.5
"""If reading the clocks took longer than this (a busy machine), their difference means nothing."""


class ClockSteps:
    """Compares the wall clock with the monotonic clock.

    Parameters
    ----------
    of_day, monotonic:
        The two clocks (s).
    """

    def __init__(
        self,
        of_day: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of_day = of_day
        self._monotonic = monotonic
        self._ahead_s = of_day() - monotonic()
        self._stepped_s: float | None = None

    def within(self, seconds: float) -> bool:
        """Whether the clock was set in the last ``seconds``; must be called at every look."""
        before_s, of_day_s, now_s = self._monotonic(), self._of_day(), self._monotonic()
        if now_s - before_s < _AT_ONCE_S:
            ahead_s = of_day_s - now_s
            if abs(ahead_s - self._ahead_s) > STEP_S:
                self._stepped_s = now_s
            self._ahead_s = ahead_s
        return self._stepped_s is not None and now_s - self._stepped_s < seconds
