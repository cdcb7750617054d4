"""Whether the ranks' helper programs are at work: compilers, tokenizer pools, copying programs.

A job in which every rank waits for such a program waits in no collective and issues nothing. It is
as healthy as one that computes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from hangscope.trace.processes.procfs import stat_of

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
BUSY = 0.2
"""CPU seconds a second, as for the ranks themselves."""
STIRS = 0.01
"""CPU seconds a second of what does something, if only to copy a file."""
COMPARABLE_S = 0.5


class Helpers:
    """CPU use of everything that the ranks have started, between two looks.

    Parameters
    ----------
    proc:
        Where the process table is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._at_s = 0.0
        self._ticks = 0

    def at_work(self, pids: Iterable[int], *, least: float = BUSY) -> bool:
        """Whether they are; True, too, where there is nothing yet to compare with.

        ``pids`` are the ranks' own; what those use themselves does not count. ``least`` is how many
        CPU seconds a second count as work.
        """
        now_s, ticks = time.monotonic(), self._used(set(pids))
        passed_s = now_s - self._at_s
        if self._at_s and passed_s < COMPARABLE_S:
            return True
        used_s = (ticks - self._ticks) / _TICKS_PER_SECOND
        first = not self._at_s
        self._at_s, self._ticks = now_s, ticks
        return first or used_s / passed_s > least

    def _used(self, ranks: set[int]) -> int:
        """Ticks of the ranks' descendants, those that have ended and were waited for included."""
        table: dict[int, tuple[int, int, int]] = {}
        for entry in os.scandir(self._proc):
            if not entry.name.isdecimal():
                continue
            words = stat_of(entry.name, self._proc)
            try:
                # After the name: state, ppid, ..., utime, stime, cutime, cstime (11th to 14th).
                own, ended = sum(map(int, words[11:13])), sum(map(int, words[13:15]))
                table[int(entry.name)] = (int(words[1]), own, ended)
            except (ValueError, IndexError):
                continue  # it has just ended
        children: dict[int, list[int]] = {}
        for pid, (parent, _, _) in table.items():
            children.setdefault(parent, []).append(pid)
        total, todo, seen = 0, [pid for pid in ranks if pid in table], set(ranks)
        while todo:
            pid = todo.pop()
            _, own, ended = table[pid]
            total += ended + (own if pid not in ranks else 0)
            fresh = [child for child in children.get(pid, ()) if child not in seen]
            seen.update(fresh)
            todo += fresh
        return total
