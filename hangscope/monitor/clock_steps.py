"""Whether the clock of this machine was set, as far as it matters for how long something waits.

When an operation was issued stands in a ring by the time of day. Where that is set an hour ahead,
everything seems to have waited for an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S = 2.0
"""Clocks are slewed by less than a thousandth; what goes further between two looks was set."""
_AT_ONCE_S = 0.5
"""On a busy machine more may pass from reading one clock to the other, which then tells nothing."""


class ClockSteps:
    """Compares the time of day with a clock that nobody sets.

    Parameters
    ----------
    of_day, monotonic:
        The clocks (s).
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
        """Whether the clock was set in the last ``seconds``; asked at every look."""
        before_s, of_day_s, now_s = self._monotonic(), self._of_day(), self._monotonic()
        if now_s - before_s < _AT_ONCE_S:
            ahead_s = of_day_s - now_s
            if abs(ahead_s - self._ahead_s) > STEP_S:
                self._stepped_s = now_s
            self._ahead_s = ahead_s
        return self._stepped_s is not None and now_s - self._stepped_s < seconds
