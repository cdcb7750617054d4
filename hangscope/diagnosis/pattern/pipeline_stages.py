"""Pipeline stages in their first step: which one ran a phase a different number of times.

Two neighbours wait for each other's halves: one expects more micro-batches than the other. There is
no past to compare with, but the other stages run the same lines and have left that phase behind. In
schedules that alternate between phases (1F1B) every stage leaves the forward pass after a different
count: no two agree, and nothing is concluded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.processes.stacks import where
from hangscope.diagnosis.records.kinds import is_sending, records_where
from hangscope.trace.model import Frame

_WRAPPER = re.compile(r"distributed_c10d\.py$|c10d_logger\.py$|[\\/]hangscope[\\/]")
_FRAMES = 4
"""This many frames around the call distinguish the phases of a schedule, not its callers."""
_MOST_RANKS = 512
_ENOUGH = 2
_ENOUGH_UNFINISHED = 3
"""This many others establish the usual count at a line if some of them may still return to it."""

Site = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OddStage:
    """``rank`` reached a line ``times`` times, and each of ``others`` ``usual`` times."""

    rank: int
    times: int
    others: tuple[int, ...]
    usual: int
    line: str


@dataclass(slots=True)
class _Phase:
    """How often a rank reached one site. ``left``: it has since begun something new."""

    times: int
    left: bool
    last: bool


Phases = dict[Site, _Phase]


def odd_stage(context: Context, suspects: Iterable[int], groups: Iterable[int]) -> OddStage | None:
    """The one of ``suspects`` that ran a phase a different number of times than the others."""
    chosen = sorted(groups)
    members = sorted({r for g in chosen for r in context.trace.groups[g].ranks})
    if len(members) > _MOST_RANKS or context.hidden.intersection(members):
        return None
    sites = _sites(context, members, chosen)
    phases = {rank: _phases(context, rank, chosen, sites) for rank in members}
    found = {}
    for suspect in sorted(suspects):
        others = {r: p for r, p in phases.items() if r != suspect}
        odd = _unlike_those_done(suspect, phases.get(suspect, {}), others)
        if odd is not None:
            found[suspect] = odd
    return next(iter(found.values())) if len(found) == 1 else None


def _unlike_those_done(suspect: int, own: Phases, others: dict[int, Phases]) -> OddStage | None:
    """The suspect, if all ranks that left a line did so after the same count and it differs."""
    odd = None
    for site, phase in own.items():
        left = {r: p[site] for r, p in others.items() if site in p and p[site].left}
        usual = {p.times for p in left.values()}
        if len(left) < _ENOUGH or len(usual) != 1:
            continue
        (times,) = usual
        if (phase.left and phase.times != times) or (phase.last and phase.times > times):
            odd = OddStage(suspect, phase.times, tuple(sorted(left)), times, _line(site))
    return odd


def _line(site: Site) -> str:
    return where(Frame("", *site[0])).removesuffix(" in ")


def _sites(context: Context, members: list[int], groups: list[int]) -> dict[int, Site]:
    """Per stack that issued a half, the frames around the call, without torch's own."""
    records = context.trace.records
    found: dict[int, Site] = {}
    for rank in members:
        low, high = context.bounds.get(rank, (0, 0))
        part = records[low:high]
        rows = np.flatnonzero(np.isin(part["group"], groups) & (part["peer"] >= 0)) + low
        stacks, first = np.unique(records["stack"][rows], return_index=True)
        for stack, at in zip(stacks.tolist(), first.tolist(), strict=True):
            if stack not in found:
                frames = [f for f in context.stack(rows[at]) if not _WRAPPER.search(f.filename)]
                found[stack] = tuple((f.filename, f.line) for f in frames[:_FRAMES])
    return found


def _phases(context: Context, rank: int, groups: list[int], sites: dict[int, Site]) -> Phases:
    """Per line from which the rank sent or received: how often, and whether it has left the line.

    Whatever a host issued after the receive or batch its device is stuck in does not count: the
    rank has not been through that.
    """
    low, high = context.bounds.get(rank, (0, 0))
    part = context.trace.records[low:high]
    rows = np.flatnonzero(np.isin(part["group"], groups) & (part["peer"] >= 0))
    front, batch = context.front, context.front.batch_row[low + rows]
    lone_sends = (batch < 0) & records_where(context.trace, is_sending, low + rows)
    holds = front.unfinished[low + rows] & ~lone_sends & ((batch < 0) | front.unfinished[batch])
    if holds.any():
        stands = int(holds.argmax())
        rows = rows[(rows <= rows[stands]) | ((batch >= 0) & (batch == batch[stands]))]
    visits = [sites[stack] for stack in part["stack"][rows].tolist()]
    first: dict[Site, int] = {}
    last: dict[Site, int] = {}
    for index, site in enumerate(visits):
        if site:
            first.setdefault(site, index)
            last[site] = index
    newest = max(first.values(), default=0)
    times = Counter(site for site in visits if site)
    return {
        site: _Phase(times[site], newest > last[site], last[site] == len(visits) - 1)
        for site in first
    }
