"""Dumps that were written before the job went on: what others have finished since tells so.

Nobody finishes a collective of all members before every member has issued it. A rank whose dump
knows nothing of one that a peer's calls finished issued it after its dump was written: it waits no
longer where its dump says so, and where it stands now is on no record.
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.cause import Cause, rank_list
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.frontier import UNKNOWN, Bools
from hangscope.diagnosis.lasting import stood_still
from hangscope.diagnosis.model import Confidence, Verdict
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
        cause.verdict, cause.confidence = Verdict.INCONCLUSIVE, Confidence.LIKELY
        cause.victims, cause.culprits = cause.victims | set(cause.culprits), ()
        cause.unknowns.append(
            f"{rank_list(tuple(sorted(stands_on)))} went on after being dumped: others have "
            "finished what is unfinished in those dumps, so the job was moving; dump all ranks "
            "again at one moment"
        )


def _members(context: Context, pairs: Bools) -> frozenset[int]:
    """Ranks of these pairs of rank and group, where dumps alone speak and list the members."""
    trace, front = context.trace, context.front
    if trace.live or any(s.format not in formats.DUMPS for s in trace.sources):
        return frozenset()
    groups = np.unique(front.group[pairs]).tolist()
    members = {g: frozenset(trace.groups[g].ranks) for g in groups if trace.groups[g].listed}
    found = zip(front.rank[pairs].tolist(), front.group[pairs].tolist(), strict=True)
    return frozenset(rank for rank, group in found if rank in members.get(group, ()))
