"""A moment's figures of one node's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.model import Diagnosis
from hangscope.monitor.local_ranks import seconds_since, waiting_since_ns
from hangscope.ring.layout import GROUP


@dataclass(frozen=True, slots=True)
class RankStanding:
    """How far one rank is."""

    issued: int
    """Collectives issued since the job's start, in all groups."""
    finished: int
    waiting_s: float
    """How long its longest waiting collective has waited."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is exported.

    ``late_s``: for each rank, how long the others have waited for it lately.
    """

    run: str
    host: str
    ranks: Mapping[int, RankStanding]
    late_s: Mapping[int, float]
    verdict: str = "healthy"
    """What was reported and is not over, as in `hangscope analyze --json`."""
    confidence: str = "certain"
    culprits: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


def standing_of(
    tables: Mapping[int, bytes],
    told: Diagnosis | None,
    *,
    run: str,
    host: str,
    late_s: Mapping[int, float],
) -> Standing:
    """The figures of this moment.

    Parameters
    ----------
    tables:
        The group table of each rank's ring, rows of `hangscope.ring.layout.GROUP`.
    told:
        What was reported and is not over.
    """
    ranks = {rank: _of_rank(np.frombuffer(table, GROUP)) for rank, table in tables.items()}
    if told is None:
        return Standing(run, host, ranks, late_s)
    of_verdict = told.verdict.value, told.confidence.value, told.culprits, told.hosts
    return Standing(run, host, ranks, late_s, *of_verdict)


def _of_rank(groups: np.ndarray[tuple[int], np.dtype[np.void]]) -> RankStanding:
    groups = groups[groups["commit"] == 1]
    issued, finished = groups["enqueued"], np.maximum(groups["completed"], 0)
    waiting_s = seconds_since(waiting_since_ns(groups))
    return RankStanding(int(issued.sum()), int(finished.sum()), waiting_s)
