"""Ranks that only the titles of processes tell, in one file or in several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangscope.trace.job_log.lines.workers import rank_of_title
from hangscope.trace.model import NONE, Fragment


def attribute_by_title(fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments; processes of unknown rank whose titles tell one are given it.

    Replicas number their ranks alike: one title alone may be of any of them, and where two
    processes have the same one no title tells a rank.
    """
    ranks = [
        rank_of_title(f.facts.called) if f.facts.rank == NONE and f.facts.called else None
        for f in fragments
    ]
    told = {
        (rank, f.facts.pid, f.facts.host)
        for rank, f in zip(ranks, fragments, strict=True)
        if rank is not None
    }
    known = {f.facts.rank for f in fragments}
    if len(told) < 2 or len({rank for rank, _, _ in told}) < len(told) or max(known) > NONE:
        return [*fragments]
    return [
        f if rank is None else replace(f, facts=replace(f.facts, rank=rank))
        for rank, f in zip(ranks, fragments, strict=True)
    ]
