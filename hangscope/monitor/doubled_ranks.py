"""Notices that two processes claim the same rank."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.trace.job_selection.duplicate_ranks import DuplicateRank

DOUBLED_S = 2.0
"""How long two processes must claim the same rank before that is reported: one may be a failed
first try."""


class DoubledRanks:
    """Which ranks two processes have claimed at every look, and since when."""

    def __init__(self) -> None:
        self._since_s: dict[DuplicateRank, float] = {}
        self._told: set[int] = set()

    def news(self, declared: Iterable[DuplicateRank], now_s: float) -> list[str]:
        """A sentence for each rank whose two claims have lasted; each rank is told once.

        ``declared``: all pairs of this look. ``now_s``: its time on a monotonic clock.
        """
        self._since_s = {pair: self._since_s.get(pair, now_s) for pair in declared}
        lasting = [pair for pair, since_s in self._since_s.items() if now_s - since_s >= DOUBLED_S]
        news: dict[int, str] = {}
        for pair in lasting:
            if pair.rank not in self._told:
                news.setdefault(pair.rank, pair.text)
        self._told.update(news)
        return list(news.values())
