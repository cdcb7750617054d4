"""Whether a job in which nobody waits in a collective is at work after all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.monitor.helper_processes import BARELY_BUSY, BUSY, HelperProcesses
from hangscope.monitor.main_threads import MainThreads
from hangscope.trace.model import RankFacts


class Activity:
    """What the ranks' main threads, and the processes that they have started, do between looks."""

    def __init__(self) -> None:
        self._helpers = HelperProcesses()
        self._main_threads = MainThreads()

    def unless_busy(
        self, diagnosis: Diagnosis, pids: Collection[int], ranks: Collection[RankFacts]
    ) -> Diagnosis:
        """The diagnosis; healthy if no collective waits and something the ranks started still runs.

        All ranks may be waiting for a compiler, or making one remote call after another.

        Parameters
        ----------
        diagnosis:
            Of this look.
        pids, ranks:
            The processes of this node's ranks, and what the look has shown of them.
        """
        undated = bool(diagnosis.findings and diagnosis.findings[0].unchanged_s)
        # With only end-of-job work left, any activity at all may take its time.
        least = BARELY_BUSY if undated else BUSY
        if diagnosis.verdict is Verdict.QUIESCENT and self._helpers.are_busy(pids, least=least):
            return as_healthy(diagnosis)
        if undated and self._main_threads.any_progressed(ranks):
            return as_healthy(diagnosis)
        return diagnosis


def as_healthy(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with its findings removed."""
    return replace(diagnosis, verdict=Verdict.HEALTHY, findings=())
