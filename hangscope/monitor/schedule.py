"""When the monitor looks closely: soon after something happens, rarely while nothing does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SETTLE_S = 0.6
"""After a process has ended: the others need a moment to show what it did to them."""
FIRST_LOOK_S = 1.0
"""How long nothing may move before the job is looked at closely."""
MAX_INTERVAL_S = 5.0
_SHARE = 0.05
"""At most this share of a processor is spent on looking, except around the timeout."""
_BEFORE_S, _AFTER_S, _AROUND_INTERVAL_S = 1.0, 3.0, 0.5
"""Around the timeout: from so long before it to so long after, and the interval then."""


@dataclass(slots=True)
class Pace:
    """When something last happened, and when to look next; times (s) on a monotonic clock.

    Parameters
    ----------
    timeout_s:
        ``HANGSCOPE_TIMEOUT``.
    changed_s:
        When any rank last made progress; now, to begin with.
    """

    timeout_s: float
    changed_s: float
    _progress: Mapping[int, bytes] = field(default_factory=dict)
    _next_look_s: float = 0.0
    _settling_until_s: float = 0.0

    def note(self, progress: Mapping[int, bytes], now_s: float, *, ended: bool) -> None:
        """What has become of the ranks since the last time.

        Parameters
        ----------
        progress:
            For each rank anything that differs when it has issued or finished an operation.
        now_s:
            The time.
        ended:
            Whether any process has ended.
        """
        if ended:
            self._next_look_s = self._settling_until_s = now_s + SETTLE_S
        if progress == self._progress:
            return
        self._progress, self.changed_s = progress, now_s
        if not self._settling_until_s:
            # Some ranks may stand still while others go on: look now and then all the same.
            self._next_look_s = min(max(self._next_look_s, now_s), now_s + FIRST_LOOK_S)

    def is_due(self, now_s: float) -> bool:
        """Whether to look now."""
        return now_s >= self._next_look_s and now_s >= self._settling_until_s

    def looked(self, now_s: float, stalled_s: float, cost_s: float) -> None:
        """The job was looked at.

        Parameters
        ----------
        now_s:
            The time.
        stalled_s:
            How long nothing has moved.
        cost_s:
            Processor seconds of the last close look.
        """
        self._settling_until_s = 0.0
        self._next_look_s = now_s + self._interval_s(stalled_s, cost_s)

    def _interval_s(self, stalled_s: float, cost_s: float) -> float:
        """Until the next close look: often near the timeout, rarer the longer it lasts."""
        remaining_s = self.timeout_s - stalled_s
        if -_AFTER_S < remaining_s < _BEFORE_S:
            return max(_AROUND_INTERVAL_S, 2 * cost_s)
        wanted_s = min(MAX_INTERVAL_S, max(FIRST_LOOK_S, stalled_s / 4))
        wanted_s = max(wanted_s, cost_s / _SHARE)
        return min(wanted_s, remaining_s) if remaining_s > 0 else wanted_s
