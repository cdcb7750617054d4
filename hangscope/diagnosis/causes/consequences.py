"""Drops causes that are consequences of others, and puts the first of the rest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.graph.store_places import waits_in_store
from hangscope.diagnosis.model import AWAITED, NEVER_CAME, Verdict
from hangscope.diagnosis.observability import cut_off, end_is_unseen
from hangscope.diagnosis.processes.process_state import in_communication, is_unseen
from hangscope.diagnosis.records.kinds import is_on_host
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.model import NONE
from hangscope.trace.units import SECOND_NS

_UNSEEN_NS = 2 * SECOND_NS
"""How long an unobserved end may have come after the rank's last sign of life."""
_OF_WAITING = AWAITED | {
    Verdict.STUCK_COLLECTIVE,
    Verdict.DEADLOCK_CYCLE,
    Verdict.INCONCLUSIVE,
}
"""Verdicts that the failure of an awaited rank may look like."""


def without_consequences(context: Context, causes: list[Cause]) -> list[Cause]:
    """The causes that are not consequences of others, the first one first.

    Victims of a dropped cause become victims of the cause it follows from.
    """
    kept = _without_waits_for_failed(context, causes)
    kept = _clear_lost(context, kept)
    kept = _without_what_mismatches_explain(context, kept)
    kept = _without_devices_held_up(context, kept)
    named = any(c.culprits and c.mismatch is None for c in kept)
    diverged = [c for c in kept if c.mismatch is not None]
    return sorted(
        kept,
        key=lambda c: (
            _is_over(c) and named,
            c.verdict is Verdict.INCONCLUSIVE,
            bool(_held_up_by(context, c, kept)),
            any(stands_beside(context, c, m) for m in diverged),
            c.began_ns or 1 << 62,
            -len(c.victims),
        ),
    )


def _held_up_by(context: Context, cause: Cause, causes: list[Cause]) -> list[int]:
    """Indices of the causes with somebody to blame for whom members wait that stand in an
    operation which everybody has reached, and for which ``cause`` blames nobody.

    Not if they had stood there for a timeout before.
    """
    if cause.culprits or cause.verdict is not Verdict.STUCK_COLLECTIVE:
        return []
    limit_ns = int(context.trace.timeout_s * SECOND_NS)
    stuck = context.waits.waiters_at(cause.places)
    return [
        index
        for index, other in enumerate(causes)
        if other.culprits
        and not _is_over(other)
        and not (cause.began_ns and cause.began_ns + limit_ns < other.began_ns)
        and not stuck.isdisjoint(context.waits.reachers(other.culprits, other.places))
    ]


def _without_devices_held_up(context: Context, causes: list[Cause]) -> list[Cause]:
    """Drop what nobody finishes on devices whose ranks also wait for somebody who is accused.

    Streams of a device wait for each other by events, which nobody records: what is queued behind
    the accused there may be any operation that has not finished.
    """
    victims: dict[int, set[int]] = defaultdict(set)
    dropped: set[int] = set()
    for index, cause in enumerate(causes):
        signatures = [context.signature(place.row) for place in context.waits.at(cause.places)]
        if any(signature is None or is_on_host(signature) for signature in signatures):
            continue
        for other in _held_up_by(context, cause, causes):
            dropped.add(index)
            victims[other] |= cause.involved
    return [c.with_victims(victims[i]) for i, c in enumerate(causes) if i not in dropped]


def _without_waits_for_failed(context: Context, causes: list[Cause]) -> list[Cause]:
    """Drop waits that began after a rank had failed, and echoes of that failure.

    A wait that had lasted for a timeout before the failure is a cause of its own.
    """
    died_ns = {r: h.end_ns for r, h in context.processes.items() if h.failed}
    crashed = Verdict.RANK_CRASHED
    genuine = {
        i
        for i, c in enumerate(causes)
        if c.verdict is crashed and not died_ns.keys().isdisjoint(c.culprits)
    }
    if not genuine:
        return causes
    ends_ns = [died_ns[r] for i in genuine for r in causes[i].culprits if died_ns.get(r)]
    latest_ns = min(ends_ns) - int(context.trace.timeout_s * SECOND_NS) if ends_ns else None
    kept: list[Cause] = []
    held_up: set[int] = set()
    for index, cause in enumerate(causes):
        before = latest_ns is not None and 0 < cause.began_ns <= latest_ns
        if is_of_waiting(cause) and not before:
            held_up |= cause.involved
        elif cause.verdict is not crashed or index in genuine:
            kept.append(cause)
    return [c.with_victims(held_up) if c.verdict is crashed else c for c in kept]


def is_of_waiting(cause: Cause) -> bool:
    """Whether it merely says who waits where: a rank that waits alone may just have arrived
    first."""
    return cause.issued_extra or cause.verdict in _OF_WAITING


def _without_what_mismatches_explain(context: Context, causes: list[Cause]) -> list[Cause]:
    """Drop causes that share ranks with a mismatch and follow from it."""
    concerning: dict[int, set[int]] = defaultdict(set)  # rank -> mismatches, by index
    # Ranks affected by what follows from a mismatch.
    held_up: dict[int, set[int]] = defaultdict(set)
    for index, cause in enumerate(causes):
        for rank in cause.involved if _is_mismatch(cause) else ():
            concerning[rank].add(index)
    explained: set[int] = set()
    for index, cause in enumerate(causes):
        if _is_mismatch(cause):
            continue
        involved = cause.involved
        near = set().union(*(concerning.get(rank, ()) for rank in involved))
        for absorbing in (i for i in near if _may_follow(context, cause, causes[i])):
            explained.add(index)
            held_up[absorbing] |= involved
            for rank in involved:
                concerning[rank].add(absorbing)
    kept = [c.with_victims(held_up[i]) for i, c in enumerate(causes) if i not in explained]
    over = "every member finished it nevertheless"
    kept = [cause.doubted(over) if _is_over(cause) else cause for cause in kept]
    diverged = [cause for cause in kept if cause.mismatch is not None]
    return [doubt_beside(context, cause, diverged) for cause in kept]


def _may_follow(context: Context, cause: Cause, mismatch: Cause) -> bool:
    """Whether a cause that involves ranks of a mismatch may be its consequence."""
    if _is_over(mismatch):
        return False
    if stands_before(context, cause, mismatch) or stands_beside(context, cause, mismatch):
        return False
    return not _own_crash_before(context, cause, mismatch)


def _is_mismatch(cause: Cause) -> bool:
    """Whether it says that issued operations are incompatible."""
    return cause.mismatch is not None or bool(cause.conflict)


def _is_over(cause: Cause) -> bool:
    """Whether it is a mismatch that every member has finished."""
    return cause.mismatch is not None and cause.mismatch.completed_by_all


def _clear_lost(context: Context, causes: list[Cause]) -> list[Cause]:
    """Drop accusations of lost ranks if the records show another fault.

    What is recorded suffices to hang the job, and a lost rank that shares a group with its victims
    may be one of them, unless others had waited for it long before that.
    """
    limit_ns = int(context.trace.timeout_s * SECOND_NS)
    kept = dict(enumerate(causes))
    lost = {
        i: c for i, c in kept.items() if c.verdict is Verdict.RANK_LOST or _unrecorded(context, c)
    }
    shown = [
        i
        for i, c in kept.items()
        if i not in lost and c.verdict is not Verdict.INCONCLUSIVE and not _is_over(c)
    ]
    for index, cause in lost.items():
        groups = [g.ranks for g in context.trace.groups if set(cause.culprits) & set(g.ranks)]
        near = {r for ranks in groups for r in ranks}
        latest_ns = cause.began_ns + limit_ns if cause.began_ns else 1 << 62
        held_up = [
            i
            for i in shown
            if near & kept[i].involved
            and kept[i].began_ns < latest_ns
            and not stands_before(context, cause, kept[i])
        ]
        if not held_up:
            continue
        del kept[index]
        for other in held_up:
            kept[other] = kept[other].with_victims(cause.involved)
    return list(kept.values())


def _unrecorded(context: Context, cause: Cause) -> bool:
    """Whether a cause names only ranks that are alive and left no record."""
    names = cause.verdict in NEVER_CAME and cause.culprits
    return bool(names) and context.unrecorded.issuperset(cause.culprits)


def _own_crash_before(context: Context, cause: Cause, mismatch: Cause) -> bool:
    if cause.verdict is not Verdict.RANK_CRASHED:
        return False
    ends = []
    for rank in cause.culprits:
        process = context.processes.get(rank)
        if process is not None:
            # For an unobserved end, only the last sign of life before it is known.
            unseen = is_unseen(context.trace.ranks[rank])
            ends.append(process.end_ns + (_UNSEEN_NS if unseen and process.end_ns else 0))
    return bool(ends) and all(e and mismatch.began_ns and e < mismatch.began_ns for e in ends)


def stands_before(context: Context, cause: Cause, mismatch: Cause) -> bool:
    """Whether members of the mismatch stand at an earlier operation of its group, for ranks that
    have not come there.

    Nothing overtakes within a group: the operations that differ have not begun.
    """
    found = mismatch.mismatch
    if found is None or cause.verdict not in AWAITED:
        return False
    return bool(cause.culprits) and any(
        not place.p2p
        and place.group == found.group
        and place.seq < found.seq
        and not found.ranks.isdisjoint(place.waiters)
        and {*place.absent, *place.unknown}.issuperset(cause.culprits)
        for place in context.waits.at(cause.places)
    )


def stands_beside(context: Context, cause: Cause, mismatch: Cause) -> bool:
    """Whether ranks that wait for nothing never came somewhere, which the mismatch, having begun as
    well, does not explain."""
    found = mismatch.mismatch
    if found is None or found.completed_by_all or cause.involved.isdisjoint(mismatch.involved):
        return False
    if cause.verdict not in NEVER_CAME or cause.issued_extra or cause.crossed:
        return False
    return (
        bool(cause.culprits)
        and found.ranks.isdisjoint(cause.culprits)
        and not stands_before(context, cause, mismatch)
        and _is_awaited_elsewhere(context, cause, mismatch)
        and all(_waits_for_nothing(context, rank) for rank in cause.culprits)
    )


def doubt_beside(context: Context, cause: Cause, diverged: Iterable[Cause]) -> Cause:
    """The cause, which is at most likely beside a mismatch.

    Waits that no recorder sees could lead from the accused to a rank that issued something else.
    """
    if not any(stands_beside(context, cause, mismatch) for mismatch in diverged):
        return cause
    return cause.doubted(
        f"whether {rank_s(cause.culprits)} waits, in something that is not recorded, for a rank of "
        "the other finding"
    )


def _is_awaited_elsewhere(context: Context, cause: Cause, mismatch: Cause) -> bool:
    """Whether somebody waits for these ranks who does not stand behind the mismatch."""
    accused = set(cause.culprits)
    return any(
        not accused.isdisjoint(place.absent)
        and any(not _is_behind(context, place, w, mismatch) for w in place.waiters)
        for place in context.waits.at(cause.places)
    )


def _is_behind(context: Context, place: Place, rank: int, mismatch: Cause) -> bool:
    """Whether a rank has issued what it waits in after the operation that differs."""
    found = mismatch.mismatch
    if found is None or rank not in found.ranks:
        return False
    diverged = context.row_of(found.group, rank, found.seq)
    here = place.row if place.p2p else context.row_of(place.group, rank, place.seq)
    return NONE in (diverged, here) or here > diverged


def _waits_for_nothing(context: Context, rank: int) -> bool:
    """Whether all that the rank has issued is on record as finished, and it is in its own code."""
    front = context.front
    told = rank in context.on_record and rank not in (
        context.partly_recorded | context.overrun | context.blank | cut_off(context.trace)
    )
    if not told or rank in context.unreadable:
        return False
    if any(front.pending[pair] > 0 for pair in context.pairs_of_rank.get(rank, ())):
        return False
    if any(half.rank == rank for half in context.pending_halves):
        return False
    newest = context.last_row(rank)
    if newest >= 0 and end_is_unseen(context.trace, newest):
        return False
    process = context.processes.get(rank)
    if process is None or process.gone:
        return False
    return not in_communication(process.stack) and not waits_in_store(process)
