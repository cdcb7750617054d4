"""Ranks that cannot run, and what their own waiting still explains.

A rank that is stopped, or whose GIL something holds, could not record completions since: whatever
it had started may be over long ago. Only if its caller cannot have returned, because some rank
never arrived, is it held up by that rank like any other.
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import INIT, NEW_GROUP, Place, Waits
from hangscope.diagnosis.records.blocking_calls import blocks_caller
from hangscope.diagnosis.records.kinds import is_one_sided


def without_own_waiting(context: Context) -> set[int]:
    """Awaited ranks whose own waiting explains nothing: they ended, or cannot run."""
    waited_for = context.waits.waited_for()
    found, halted = set(), set()
    for rank, process in context.processes.items():
        if rank in waited_for and process.ended_by_itself:
            found.add(rank)
        elif rank in waited_for and process.cannot_run:
            halted.add(rank)
    return found | (halted - _held_up(context, halted))


def needs_a_cause(waits: Waits, place: Place) -> bool:
    """Whether a place that everybody has reached hangs: a rank that can run is stuck there."""
    return any(rank not in waits.cut for rank in place.waiters)


def _held_up(context: Context, ranks: set[int]) -> set[int]:
    """Those of the ranks that would still wait if they could run: some rank never arrived."""
    waits = context.waits
    places = {i: waits.places[i] for r in ranks for i in waits.places_of.get(r, ())}
    lasting = {i for i, p in places.items() if p.absent and not p.weak}
    if not lasting:
        return set()
    blocking = blocks_caller(context.trace)
    return {
        rank
        for rank in ranks
        for i in lasting.intersection(waits.places_of.get(rank, ()))
        if _is_blocked(context, rank, places[i], blocking)
    }


def _is_blocked(
    context: Context, rank: int, place: Place, blocking: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> bool:
    """Whether the rank's caller cannot have returned before all have reached a place."""
    if place.phase:
        return place.phase in (INIT, NEW_GROUP)
    if place.p2p:
        return bool(blocking[place.row])
    row = context.row_of(place.group, rank, place.seq)
    signature = context.signature(row) if row >= 0 else None
    return signature is not None and bool(blocking[row]) and not is_one_sided(signature)
