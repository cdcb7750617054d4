"""Whether others were told to stop at one moment, once one of them had ended of that.

A launcher that answers an end tells all others within a fraction of a millisecond; a script that
stops process after process needs some for each. A monitor on a busy machine sees the second end
long after it: what counts is when it last saw nobody told, and how soon all others were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hangscope.monitor.processes import ProcessWatch

LOOK_S = 0.002
"""Between two looks while the others may be told any moment."""
AT_ONCE_S = 0.006
"""Told within so long, as seen from outside, is told at one moment."""
WATCHED_S = 10.0
"""Launchers ask every tenth of a second to every few seconds whether a process has ended."""


class Telling:
    """Follows who has been told to stop after the first has ended.

    Parameters
    ----------
    processes:
        Those of this node's ranks.
    clock:
        Tells the time (s).
    """

    def __init__(
        self, processes: ProcessWatch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._processes = processes
        self._clock = clock
        self._signal = 0
        self._until_s = 0.0
        self._ranks: dict[int, int] = {}
        self._untold_s: dict[int, float] = {}
        """For each process when a look had last begun that saw it untold."""
        self._told_s: dict[int, float] = {}
        """When a look had ended that saw it told, or on its way out."""

    @property
    def is_watched(self) -> bool:
        """Whether others may be told any moment."""
        return self._clock() < self._until_s

    def first_ended(self, number: int) -> list[tuple[int, int]]:
        """A signal has ended the first: (rank, process) of those to which nobody has sent it."""
        self._signal, began_s = number, self._clock()
        untold = self._processes.untold(number)
        self._ranks = {pid: rank for rank, pid in untold}
        self._untold_s = dict.fromkeys(self._ranks, began_s)
        self._until_s = began_s + WATCHED_S if untold else 0.0
        return untold

    def look(self) -> None:
        """Look again who has been told."""
        began_s = self._clock()
        untold = {pid for _, pid in self._processes.untold(self._signal)}
        ended_s = self._clock()
        for pid in self._ranks:
            if pid in untold:
                self._untold_s[pid] = began_s
            else:
                self._told_s.setdefault(pid, ended_s)

    def left_by_itself(self, pid: int) -> None:
        """A process has ended otherwise: whether it was told does not show."""
        self._ranks.pop(pid, None)

    def second_ended(self) -> list[tuple[int, int]] | None:
        """The signal has ended another one: (rank, process) of those that are still untold.

        None where all have been told, and not seen to be so at one moment.
        """
        self.look()
        time.sleep(LOOK_S)  # who tells all is done with that by then
        self.look()
        self._until_s = 0.0
        left = [(rank, pid) for pid, rank in self._ranks.items() if pid not in self._told_s]
        return left if left or _at_one_moment(self._ranks, self._untold_s, self._told_s) else None


def _at_one_moment(
    processes: Mapping[int, int], untold_s: Mapping[int, float], told_s: Mapping[int, float]
) -> bool:
    """Whether all were told between two looks that came right after each other."""
    last_s = max((told_s[pid] for pid in processes), default=0.0)
    first_s = min((untold_s[pid] for pid in processes), default=0.0)
    return last_s - first_s <= AT_ONCE_S
