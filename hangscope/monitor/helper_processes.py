"""Whether processes started by the ranks are busy: compilers, tokenizer pools, file copies.

If every rank waits for such a process, the job issues nothing and waits in no collective. It is as
healthy as a job that computes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from hangscope.monitor.process_table import TICKS_PER_SECOND, process_table

BUSY = 0.2
"""CPU seconds per second that count as work; the same threshold as for the ranks themselves."""
BARELY_BUSY = 0.01
"""CPU seconds per second of a process that does anything at all, such as copying a file."""
MIN_INTERVAL_S = 0.5


class HelperProcesses:
    """CPU use of all descendants of the ranks between two looks.

    Parameters
    ----------
    proc:
        Where the process table is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._at_s = 0.0
        self._ticks = 0

    def are_busy(self, pids: Iterable[int], *, least: float = BUSY) -> bool:
        """Whether the descendants are busy; also True if there is nothing to compare with yet.

        ``pids`` are the ranks; their own CPU use does not count. ``least`` is how many CPU seconds
        per second count as work.
        """
        now_s, ticks = time.monotonic(), self._used(set(pids))
        passed_s = now_s - self._at_s
        if self._at_s and passed_s < MIN_INTERVAL_S:
            return True
        used_s = (ticks - self._ticks) / TICKS_PER_SECOND
        first = not self._at_s
        self._at_s, self._ticks = now_s, ticks
        return first or used_s / passed_s > least

    def _used(self, ranks: set[int]) -> int:
        """CPU ticks of the ranks' descendants, including those that ended and were reaped.

        Without this process, which a rank may have started.
        """
        table = process_table(self._proc)
        children: dict[int, list[int]] = {}
        for pid, row in table.items():
            children.setdefault(row.parent, []).append(pid)
        total, todo, seen = 0, [pid for pid in ranks if pid in table], {*ranks, os.getpid()}
        while todo:
            pid = todo.pop()
            row = table[pid]
            total += row.reaped_ticks + (row.own_ticks if pid not in ranks else 0)
            fresh = [child for child in children.get(pid, ()) if child not in seen]
            seen.update(fresh)
            todo += fresh
        return total
