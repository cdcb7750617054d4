"""Ranks that may be creating a communicator, which no dump records.

A backend creates the communicator of a group, or of a pair, when its members first use it, and that
blocks each of them until all have come. The operation is recorded only after that, so the dump of a
rank in there shows a rank that waits for nobody, or is not written at all, while the rank at fault
is the one that it waits for (source: ``ProcessGroupNCCL`` of torch, ``initNCCLComm``).
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import AWAITED, Confidence
from hangscope.diagnosis.observability import cut_off, snapshots
from hangscope.diagnosis.wording.phrases import capital, does, rank_s
from hangscope.trace.model import NONE

_MOST_NAMED = 16
_STEPS = 2
"""After so many times as many operations as it took to use its communicators for the first time, a
rank creates no other one."""


def or_meeting_first(context: Context, cause: Cause) -> Cause:
    """The cause, with those accused as well for whom an accused rank may wait while the two create
    a communicator. Nobody is named if that would be more than half of the job."""
    if cause.verdict not in AWAITED or cause.mismatch is not None or cause.crossed:
        return cause
    unclear, accused = _unclear(context), {*cause.culprits}
    whole = snapshots(context.trace) - context.hidden - cut_off(context.trace)
    first = {rank: _strangers(context, rank) & unclear for rank in unclear & whole}
    others = {r for rank in first.keys() & accused for r in first[rank]}
    others |= {rank for rank, strangers in first.items() if not strangers.isdisjoint(accused)}
    if others <= accused or unclear.isdisjoint(accused):
        return cause
    named = tuple(sorted(others | accused))
    reason = (
        f"which of {rank_s(named)} wait for another one of them while they create a communicator: "
        "that is not recorded"
    )
    if 2 * len(named) > max(len(context.known_ranks), 4) or len(named) > _MOST_NAMED:
        return cause.naming_nobody(reason)
    lost = [rank for rank in named if rank not in context.on_record]
    idle = [rank for rank in named if rank in context.on_record]
    both = [f"{does(idle, 'waits')} for nobody on record"] if idle else []
    both += [f"{rank_s(lost)} left no record"] if lost else []
    words = Words(
        f"{capital(', '.join(both))}, and others wait for them",
        "one of them did not come, and the others may be creating a communicator with it: that "
        "happens when it is first used, blocks every member, and is not recorded",
        f"of {rank_s(named)} find the one that is in no collective, send or receive: in its log, "
        "with py-spy dump --pid while it runs, or with HANGSCOPE=1, which records what such ranks "
        "are in",
    )
    return Cause(
        cause.verdict,
        named,
        cause.places,
        Confidence.AMBIGUOUS,
        cause.began_ns,
        cause.victims.difference(named),
        words=words,
        unknowns=(*cause.unknowns, reason),
    )


def _unclear(context: Context) -> set[int]:
    """Ranks that may be creating a communicator, or be awaited by one that does.

    No source says anything about them, or they have a dump in which they wait for nobody.
    """
    waiting = context.waits.places_of
    silent = {
        rank
        for rank, facts in context.trace.ranks.items()
        if not waiting.get(rank) and not facts.finalized and not context.is_observed(rank)
    }
    return silent.union(context.trace.missing_ranks)


def _strangers(context: Context, rank: int) -> set[int]:
    """Ranks with which this one may create a communicator: that of a group it has not used, or of a
    pair.

    None where the rank has for long used those alone that it had used before, unless others took
    one for the first time after the same operations.
    """
    groups = context.trace.groups
    low, high = context.bounds.get(rank, (0, 0))
    part = context.trace.records[low:high]
    used = list(zip(part["group"].tolist(), part["peer"].tolist(), strict=True))
    newest = max(map(used.index, used), default=-1)
    if len(used) > _STEPS * max(newest + 1, 1) and not any(
        _begins_another(context, other, rank) for other in context.bounds
    ):
        return set()
    paired, begun = {peer for _, peer in used}, {group for group, peer in used if peer == NONE}
    own = [(number, group) for number, group in enumerate(groups) if rank in group.ranks]
    return {r for number, g in own if number not in begun for r in g.ranks} - {rank, *paired}


def _begins_another(context: Context, other: int, rank: int) -> bool:
    """Whether another rank used a communicator for the first time after all that this one did."""
    (low, high), (begin, end) = context.bounds[other], context.bounds[rank]
    own, before = context.trace.records[low:high], end - begin
    if len(own) <= before or context.trace.ranks[other].oldest_record_id > 1:
        return False
    past, then = own[:before], own[before]
    if ((past["group"] == then["group"]) & (past["peer"] == then["peer"])).any():
        return False
    done = context.streams.of(rank).what
    return np.array_equal(context.streams.of(other).what[: len(done)], done)
