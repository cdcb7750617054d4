"""Ranks that cannot go on by themselves, and what their own waiting still explains.

Whoever is stopped, or in whose process something holds the GIL, could not write down what has ended
since: what such a rank had begun may be over long ago. Only where its caller cannot have come back,
for somebody never came, is it held up by that one as any other rank would be.
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import INIT, NEW_GROUP, Place, Waits
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.blocking_calls import blocks_caller
from hangscope.diagnosis.records.kinds import is_one_sided


def without_own_waiting(context: Context) -> set[int]:
    """Ranks that are waited for and whose own waiting explains nothing: ended, or halted."""
    waited_for = context.waits.waited_for()
    found, halted = set(), set()
    for rank, process in context.processes.items():
        if rank in waited_for and _ended_by_itself(process):
            found.add(rank)
        elif rank in waited_for and process.cannot_run:
            halted.add(rank)
    return found | (halted - _held_up(context, halted))


def needs_a_cause(waits: Waits, place: Place) -> bool:
    """Whether a place to which everybody has come hangs: somebody stands there who can go on."""
    return any(rank not in waits.cut for rank in place.waiters)


def _ended_by_itself(process: ProcessState) -> bool:
    return process.end is End.CLEAN or (process.end is End.CRASHED and not process.secondary)


def _held_up(context: Context, ranks: set[int]) -> set[int]:
    """Those of the ranks that would wait on if they could run: somebody never came."""
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
    """Whether the rank's caller cannot have come back before all have come to a place."""
    if place.phase:
        return place.phase in (INIT, NEW_GROUP)
    if place.p2p:
        return bool(blocking[place.row])
    row = context.row_of(place.group, rank, place.seq)
    signature = context.signature(row) if row >= 0 else None
    return signature is not None and bool(blocking[row]) and not is_one_sided(signature)
