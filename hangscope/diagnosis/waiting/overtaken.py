"""Dumps that were written before the job went on: what others have finished since tells so.

Nobody finishes a collective of all members before every member has issued it. A rank whose dump
knows nothing of one that a peer's calls finished issued it after its dump was written: it waits no
longer where its dump says so, and where it stands now is on no record.
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.cause import Cause, rank_list
from hangscope.diagnosis.context import SECOND_NS, Context
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.records.frontier import UNKNOWN, Bools
from hangscope.diagnosis.waiting.lasting import stood_still
from hangscope.trace import formats

_OF_WAITING = (
    Verdict.MISSING_RANK,
    Verdict.P2P_UNMATCHED,
    Verdict.STUCK_COLLECTIVE,
    Verdict.DEADLOCK_CYCLE,
)


def overtaken(context: Context) -> frozenset[int]:
    """Ranks that went on after their dumps were written, as the dumps of others show."""
    front = context.front
    return _members(context, (front.enqueued != UNKNOWN) & (front.enqueued < front.ended))


def doubt_overtaken(context: Context, causes: list[Cause]) -> None:
    """Such a rank is accused of nothing, and nobody is stuck where only such ranks wait.

    Nor is one whose dump does not know yet that it had finished what it is past, unless it is known
    that the job stood still: then its states were only written down late.
    """
    early = unsure = overtaken(context)
    if not stood_still(context):
        unsure = early | _members(context, context.front.late)
    if not unsure:
        return
    for cause in causes:
        stuck = cause.verdict is Verdict.STUCK_COLLECTIVE
        if cause.verdict not in _OF_WAITING or not cause.places:
            continue
        waiting = {r for i in cause.places for r in context.waits.places[i].waiters}
        stands_on = (unsure if stuck else early) & (set(cause.culprits) or waiting)
        if not stands_on:
            continue
        cause.accuse_nobody(
            f"{rank_list(tuple(sorted(stands_on)))} went on after being dumped: others have "
            "finished what is unfinished in those dumps, so the job was moving; dump all ranks "
            "again at one moment"
        )


def doubt_dumped_before(context: Context, causes: list[Cause]) -> None:
    """Who was dumped before the others began to wait for it may have come since."""
    if context.trace.live or any(s.format not in formats.DUMPS for s in context.trace.sources):
        return
    written = {r: f.observed_ns for r, f in context.trace.ranks.items()}
    for cause in causes:
        if cause.verdict is not Verdict.MISSING_RANK or not cause.began_ns:
            continue
        late_ns = cause.began_ns - SECOND_NS
        before = tuple(r for r in cause.culprits if 0 < written.get(r, 0) < late_ns)
        if before:
            cause.doubt(f"{rank_list(before)} had been dumped before the others began to wait")
            rest = tuple(r for r in cause.culprits if r not in before)
            cause.culprits = rest or cause.culprits


def _members(context: Context, pairs: Bools) -> frozenset[int]:
    """Ranks of these pairs of rank and group, where dumps alone speak and list the members."""
    trace, front = context.trace, context.front
    if trace.live or any(s.format not in formats.DUMPS for s in trace.sources):
        return frozenset()
    groups = np.unique(front.group[pairs]).tolist()
    members = {g: frozenset(trace.groups[g].ranks) for g in groups if trace.groups[g].listed}
    found = zip(front.rank[pairs].tolist(), front.group[pairs].tolist(), strict=True)
    return frozenset(rank for rank, group in found if rank in members.get(group, ()))
