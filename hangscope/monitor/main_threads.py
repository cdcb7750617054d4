"""Whether main threads run at all, which identical stack samples cannot tell.

A series of remote calls shows the same stack as one call that never returns. But a thread blocked
in one call is not scheduled, and one that makes many calls is: the kernel counts context switches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from hangscope.diagnosis.wording.blocked import asks_again
from hangscope.trace.model import RankFacts

_SWITCHES = re.compile(r"ctxt_switches:\s*(\d+)")


class MainThreads:
    """Context switches of processes' main threads between two looks.

    Parameters
    ----------
    proc:
        Where procfs is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before: Mapping[int, int] = {}

    def ran(self, pids: Iterable[int]) -> bool:
        """Whether any has run since the last look; also True if there is nothing to compare with.

        Processes that have ended are left out.
        """
        counts = {pid: self._count(pid) for pid in pids}
        now = {pid: count for pid, count in counts.items() if count is not None}
        before, self._before = self._before, now
        return not now or any(count < 0 or before.get(pid) != count for pid, count in now.items())

    def any_progressed(self, ranks: Iterable[RankFacts]) -> bool:
        """Whether the main thread of any of these local ranks does more than poll in a loop."""
        pids = [f.pid for f in ranks if f.pid and f.alive and not asks_again(f.main_stack)]
        return bool(pids) and self.ran(pids)

    def _count(self, pid: int) -> int | None:
        """The thread's context switches; -1 if they cannot be read, None if the process is gone."""
        try:
            text = (self._proc / str(pid) / "task" / str(pid) / "status").read_text("utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return None
        except (OSError, UnicodeDecodeError):
            return -1
        found = _SWITCHES.findall(text)
        return sum(map(int, found)) if found else -1
