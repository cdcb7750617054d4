"""Stages of a pipeline in its first step: which one goes through a phase another number of times.

Two neighbours wait for each other's halves: one of them expects more micro-batches than the other.
The past says nothing yet, but the other stages run the same lines and have left that phase behind.
In schedules that go back and forth between their phases (1F1B) every stage first leaves the forward
pass after a number of its own: no two agree, and nothing is concluded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.evidence import hidden_ranks
from hangscope.diagnosis.stacks import where
from hangscope.trace.model import Frame

_WRAPPER = re.compile(r"distributed_c10d\.py$|c10d_logger\.py$|[\\/]hangscope[\\/]")
_FRAMES = 4
"""So many frames around the call tell the phases of a schedule apart, and not its callers."""
_MOST_RANKS = 512
_ENOUGH = 2

Site = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OddStage:
    """``rank`` came to a line ``times`` times, and each of ``others`` ``usual`` times."""

    rank: int
    times: int
    others: tuple[int, ...]
    usual: int
    line: str


@dataclass(slots=True)
class _Phase:
    """How often a rank came to one site. ``left``: it has since begun something new."""

    times: int
    left: bool
    last: bool


def odd_stage(context: Context, suspects: Iterable[int], groups: Iterable[int]) -> OddStage | None:
    """The one of ``suspects`` that went through a phase another number of times than the others."""
    chosen = sorted(groups)
    members = sorted({r for g in chosen for r in context.trace.groups[g].ranks})
    if len(members) > _MOST_RANKS or hidden_ranks(context.trace).intersection(members):
        return None
    phases = {rank: _phases(context, rank, chosen) for rank in members}
    found = {}
    for suspect in sorted(suspects):
        for site, mine in phases.get(suspect, {}).items():
            left = {r: p[site] for r, p in phases.items() if r != suspect and site in p}
            left = {r: p for r, p in left.items() if p.left}
            usual = {p.times for p in left.values()}
            if len(left) < _ENOUGH or len(usual) != 1:
                continue
            (times,) = usual
            if (mine.left and mine.times != times) or (mine.last and mine.times > times):
                line = where(Frame("", *site[0])).removesuffix(" in ")
                found[suspect] = OddStage(suspect, mine.times, tuple(sorted(left)), times, line)
    return next(iter(found.values())) if len(found) == 1 else None


def _phases(context: Context, rank: int, groups: list[int]) -> dict[Site, _Phase]:
    """Per line from which the rank sent or received: how often, and whether it has left it."""
    low, high = context.bounds.get(rank, (0, 0))
    part = context.trace.records[low:high]
    rows = np.flatnonzero(np.isin(part["group"], groups) & (part["peer"] >= 0)) + low
    sites = [_site(context, row) for row in rows.tolist()]
    first: dict[Site, int] = {}
    last: dict[Site, int] = {}
    for index, site in enumerate(sites):
        if site:
            first.setdefault(site, index)
            last[site] = index
    newest = max(first.values(), default=0)
    times = Counter(site for site in sites if site)
    return {
        site: _Phase(times[site], newest > last[site], last[site] == len(sites) - 1)
        for site in first
    }


def _site(context: Context, row: int) -> Site:
    """The frames from which a half was issued, without those of torch's own wrappers."""
    frames = [f for f in context.stack(row) if not _WRAPPER.search(f.filename)]
    return tuple((f.filename, f.line) for f in frames[:_FRAMES])
