"""Ranks that never came, beside a mismatch among those that came: which absences it explains.

Whoever is held up by a mismatch waits: in what differs, or for a rank that does. So a rank that is
known to wait for nothing is not held up, and what ranks have not finished in the group before they
come to the operations that differ cannot follow from them either.
"""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.graph.store_places import waits_in_store
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.process_state import in_communication
from hangscope.diagnosis.records.coverage import cut_off, end_is_unseen
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.model import NONE

_NEVER_CAME = (Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED)


def stands_before(context: Context, cause: Cause, mismatch: Cause) -> bool:
    """Whether members of the mismatch stand at an earlier operation of its group, for ranks that
    have not come there.

    Nothing overtakes within a group: the operations that differ have not begun.
    """
    found = mismatch.mismatch
    if found is None or cause.verdict not in (*_NEVER_CAME, Verdict.RANK_LOST):
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
    if cause.verdict not in _NEVER_CAME or cause.issued_extra or cause.crossed:
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
