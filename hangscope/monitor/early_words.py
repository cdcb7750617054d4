"""What the monitor says before anything counts as a hang: notices, and who is always late."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hangscope.diagnosis.model import Diagnosis, Finding, Verdict
from hangscope.diagnosis.waiting.without_timeout import LEAST_S
from hangscope.monitor.hardware.errors import DeviceErrors
from hangscope.monitor.helper_processes import HelperProcesses
from hangscope.monitor.notices import Notice, Notices
from hangscope.monitor.straggler_news import StragglerNews
from hangscope.trace.model import Trace

_HELPERS_BUSY = 0.05
"""CPU seconds per second of helper processes that count as work."""
_MOST_AWAITED = 8
"""Of more ranks at once, the helper processes are not looked at: each costs a process table."""


class EarlyWords:
    """Looks at a job that counts as healthy.

    Parameters
    ----------
    notice:
        ``HANGSCOPE_NOTICE``.
    say:
        Prints a line.
    note:
        Writes what a notice has found to the journal.
    """

    def __init__(
        self, notice: str, say: Callable[[str], None], note: Callable[[Finding], None]
    ) -> None:
        self._notices = Notices(enabled=notice != "0")
        self._stragglers = StragglerNews(enabled=notice == "slow")
        self._say = say
        self._note = note
        self._errors = DeviceErrors()
        self._helpers: dict[int, HelperProcesses] = {}

    def look(
        self, trace: Trace, diagnosis: Diagnosis, pids: Mapping[int, int], *, whole: bool
    ) -> None:
        """Say what is long for this job.

        Parameters
        ----------
        trace, diagnosis:
            Of this look.
        pids:
            The process of each rank of this node.
        whole:
            Whether all ranks of the job are seen; otherwise notices are only taken back.
        """
        if not whole:
            if (over := self._notices.over(trace)) is not None:
                self._say(over)
            return
        if diagnosis.verdict is not Verdict.HEALTHY:
            self._notices.superseded()
            return
        early = self._notices.early(trace)
        if error := self._errors.news(waits=early is not None):
            self._say(f"ranks have waited for {LEAST_S:.0f} s and more; {error}")
        awaited = early.findings[0].culprits if early is not None else ()
        busy = self._busy({rank: pids[rank] for rank in awaited if rank in pids})
        for said in (self._notices.line(trace, early, busy), self._stragglers.line(trace)):
            if said is not None:
                self._say(said.line if isinstance(said, Notice) else said)
            if isinstance(said, Notice):
                self._note(said.finding)

    def _busy(self, awaited: Mapping[int, int]) -> set[int]:
        """Awaited ranks whose helper processes work; none at the first look at them."""
        if len(awaited) > _MOST_AWAITED:
            return set()
        before = self._helpers
        self._helpers = {pid: before.get(pid, HelperProcesses()) for pid in awaited.values()}
        return {
            rank
            for rank, pid in awaited.items()
            if self._helpers[pid].are_busy([pid], least=_HELPERS_BUSY) and pid in before
        }
