"""Whether all remaining ranks got a stop signal at the same moment, after a first one ended by it.

A launcher that reacts to the end of one rank signals all others within a fraction of a millisecond;
a script that kills one process after another takes some milliseconds for each. A monitor on a busy
machine notices the second end long after it happened. So what counts is the time between the last
look that found a process not signalled and the first look that found all of them signalled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hangscope.monitor.processes import ProcessWatch

LOOK_S = 0.002
"""Interval between looks while the others may be signalled any moment."""
AT_ONCE_S = 0.006
"""Signals seen within this time count as sent at the same moment."""
WATCHED_S = 10.0
"""How long to watch; launchers poll their processes every tenth of a second to few seconds."""


class StopSignals:
    """Tracks which ranks have been sent a stop signal after a first one ended by it.

    Parameters
    ----------
    processes:
        The processes of this node's ranks.
    clock:
        A monotonic clock (s).
    """

    def __init__(
        self, processes: ProcessWatch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._processes = processes
        self._clock = clock
        self._signal = 0
        self._until_s = 0.0
        self._ranks: dict[int, int] = {}
        self._unsignalled_s: dict[int, float] = {}
        """Start of the last look that found the process not signalled, by process id."""
        self._signalled_s: dict[int, float] = {}
        """End of the first look that found it signalled or exiting, by process id."""

    @property
    def is_watched(self) -> bool:
        """Whether others may be signalled any moment."""
        return self._clock() < self._until_s

    def first_ended(self, number: int) -> list[tuple[int, int]]:
        """A signal ended the first process: (rank, pid) of those that have not been sent it."""
        self._signal, began_s = number, self._clock()
        untold = self._processes.unsignalled(number)
        self._ranks = {pid: rank for rank, pid in untold}
        self._unsignalled_s = dict.fromkeys(self._ranks, began_s)
        self._until_s = began_s + WATCHED_S if untold else 0.0
        return untold

    def look(self) -> None:
        """Check again which processes have been signalled."""
        began_s = self._clock()
        untold = {pid for _, pid in self._processes.unsignalled(self._signal)}
        ended_s = self._clock()
        for pid in self._ranks:
            if pid in untold:
                self._unsignalled_s[pid] = began_s
            else:
                self._signalled_s.setdefault(pid, ended_s)

    def discard(self, pid: int) -> None:
        """Ignore a process that ended otherwise: nothing shows whether it was signalled."""
        self._ranks.pop(pid, None)

    def second_ended(self) -> list[tuple[int, int]] | None:
        """The signal ended another process: (rank, pid) of those still not signalled.

        None if all have been signalled, but not provably at the same moment.
        """
        self.look()
        time.sleep(LOOK_S)  # a sender that signals all of them is done by then
        self.look()
        self._until_s = 0.0
        left = [(rank, pid) for pid, rank in self._ranks.items() if pid not in self._signalled_s]
        return (
            left
            if left or _at_one_moment(self._ranks, self._unsignalled_s, self._signalled_s)
            else None
        )


def _at_one_moment(
    processes: Mapping[int, int],
    unsignalled_s: Mapping[int, float],
    signalled_s: Mapping[int, float],
) -> bool:
    """Whether all were signalled between two consecutive looks."""
    last_s = max((signalled_s[pid] for pid in processes), default=0.0)
    first_s = min((unsignalled_s[pid] for pid in processes), default=0.0)
    return last_s - first_s <= AT_ONCE_S
