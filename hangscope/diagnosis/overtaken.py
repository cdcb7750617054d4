"""Dumps that were written before the job went on: what others have finished since tells so.

Nobody finishes a collective of all members before every member has issued it. A rank whose dump
knows nothing of one that a peer's calls finished issued it after its dump was written: it waits no
longer where its dump says so, and where it stands now is on no record.
"""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause, rank_list
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.frontier import UNKNOWN
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace import formats


def overtaken(context: Context) -> frozenset[int]:
    """Ranks that went on after their dumps were written, as the dumps of others show."""
    trace, front = context.trace, context.front
    if trace.live or any(s.format not in formats.DUMPS for s in trace.sources):
        return frozenset()
    behind = (front.enqueued != UNKNOWN) & (front.enqueued < front.ended)
    return frozenset(
        rank
        for rank, group in zip(
            front.rank[behind].tolist(), front.group[behind].tolist(), strict=True
        )
        if trace.groups[group].listed and rank in trace.groups[group].ranks
    )


def doubt_overtaken(context: Context, causes: list[Cause]) -> None:
    """Such a rank is accused of nothing, and nobody is stuck where only such ranks wait."""
    early = overtaken(context)
    if not early:
        return
    for cause in causes:
        waiting = {r for i in cause.places for r in context.waits.places[i].waiters}
        stands_on = set(cause.culprits) or waiting
        if cause.mismatch is not None or not early.intersection(stands_on):
            continue
        cause.verdict, cause.confidence = Verdict.INCONCLUSIVE, Confidence.LIKELY
        cause.victims, cause.culprits = cause.victims | set(cause.culprits), ()
        cause.unknowns.append(
            f"{rank_list(tuple(sorted(early)))} went on after being dumped, as others have finished "
            "what is not in those dumps: the job was moving; dump all ranks again at one moment"
        )
