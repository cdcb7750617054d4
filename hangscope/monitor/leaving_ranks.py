"""Decides whether to wait for the exit status of a rank that is about to end."""

from __future__ import annotations

from collections.abc import Callable

from hangscope.diagnosis.model import ENDED, Diagnosis, Verdict
from hangscope.monitor.rank_state import has_failed, is_shutting_down
from hangscope.trace.model import RankFacts, Trace

SHUTDOWN_S = 10.0
"""How long a rank may take to shut down before it is diagnosed without its exit status."""


class LeavingRanks:
    """Since when ranks have been seen on their way out, at every look."""

    def __init__(self, is_ending: Callable[[RankFacts], bool]) -> None:
        """``is_ending``: whether a process is gone but has no status yet."""
        self._is_ending = is_ending
        self._since_s = 0.0

    def are_awaited(self, trace: Trace, diagnosis: Diagnosis, now_s: float) -> bool:
        """Whether the verdict depends on a status that is still to come; only for a while.

        The status decides between crash and exit. ``now_s``: the time of this look on a monotonic
        clock.
        """
        if diagnosis.verdict not in (*ENDED, Verdict.INCONCLUSIVE):
            return False
        known = diagnosis.verdict is Verdict.RANK_CRASHED and all(
            rank in trace.ranks and has_failed(trace.ranks[rank]) for rank in diagnosis.culprits
        )
        leaving = any(
            (f.alive and is_shutting_down(f) and not known) or self._is_ending(f)
            for f in trace.ranks.values()
        )
        self._since_s = (self._since_s or now_s) if leaving else 0.0
        return leaving and now_s - self._since_s < SHUTDOWN_S
