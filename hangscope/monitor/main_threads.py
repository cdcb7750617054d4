"""Whether main threads run at all: what a stack that looks the same in every sample does not tell.

One remote call after the other shows the same lines as one call that never returns. But a thread
that waits in one call is not scheduled, and one that makes many is: the kernel counts that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from hangscope.diagnosis.wording.blocked import asks_again
from hangscope.trace.model import RankFacts

_SWITCHES = re.compile(r"ctxt_switches:\s*(\d+)")


class MainThreads:
    """Counts of the kernel's switches to the main threads of processes, between two looks.

    Parameters
    ----------
    proc:
        Where the process table is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before: Mapping[int, int] = {}

    def ran(self, pids: Iterable[int]) -> bool:
        """Whether any has run since the last look; True, too, where there is nothing to compare.

        Processes that have ended are left out.
        """
        counts = {pid: self._count(pid) for pid in pids}
        now = {pid: count for pid, count in counts.items() if count is not None}
        before, self._before = self._before, now
        return not now or any(count < 0 or before.get(pid) != count for pid, count in now.items())

    def go_on(self, ranks: Iterable[RankFacts]) -> bool:
        """Whether any of these ranks of this machine has, and not only to ask again and again."""
        pids = [f.pid for f in ranks if f.pid and f.alive and not asks_again(f.main_stack)]
        return bool(pids) and self.ran(pids)

    def _count(self, pid: int) -> int | None:
        """How often the thread was taken off or put on a processor; -1 where that is not told.

        None where there is no such process any more.
        """
        try:
            text = (self._proc / str(pid) / "task" / str(pid) / "status").read_text("utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return None
        except (OSError, UnicodeDecodeError):
            return -1
        found = _SWITCHES.findall(text)
        return sum(map(int, found)) if found else -1
