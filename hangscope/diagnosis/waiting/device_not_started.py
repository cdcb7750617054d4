"""Ranks whose device has not started an operation that all members have issued.

With `TORCH_NCCL_ENABLE_TIMING` the recorder notes when a device starts an operation. A rank that
has issued an operation others have started, has nothing older unfinished and has not started it
itself is held up by something else on its own device: a kernel of the job, a copy, a wait for an
event. A member that left no record changes nothing about that: a device starts its part of an
operation whether or not the others have come.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.waiting.collective_facts import CollectiveFacts
from hangscope.trace.model import NONE, Flag, State, Trace, flagged


def late_devices(
    trace: Trace, front: Frontiers, collectives: CollectiveFacts, places: list[Place]
) -> dict[int, int]:
    """Maps each such rank to the index of the place that waits for it, and updates these places.

    Only ranks with a recorded start anywhere count: for others, starts may not be recorded at all.
    """
    began = trace.records["started_ns"] > 0
    timed = set(np.unique(trace.records["rank"][began]).tolist())
    members = trace.members
    timed.update(members["rank"][members["started"] > 0].tolist())
    if not timed:
        return {}
    unseen = flagged(trace.records["flags"], Flag.UNOBSERVED)
    unseen &= front.collective & (trace.records["state"] != int(State.COMPLETED))

    def late(rank: int, row: int) -> bool:
        """Whether the rank's device, of which starts are recorded, has not reached this record."""
        if rank not in timed or began[row] or trace.records["state"][row] != int(State.SCHEDULED):
            return False
        before = slice(collectives.bounds[rank][0], row)
        held = front.unfinished[before] & (front.batch_row[before] != row)
        return not (held | (unseen[before] & unseen[row])).any()

    open_ = [
        (index, place, _issued(collectives, place))
        for index, place in enumerate(places)
        if not (place.absent or place.behind or place.done)
        and not (place.blind or place.phase or place.counted)
    ]
    found: dict[int, int] = {}
    for index, place, issued in open_:
        rows = {rank: _carried_out(front, row) for rank, row in issued.items() if row != NONE}
        behind = [rank for rank, row in rows.items() if late(rank, row)]
        here = [rank for rank in place.waiters if rank not in behind]
        shown = [rank for rank in here if rank in rows]  # of the others no record is left
        # One late device is held up by its own work; if most are late, by something they share.
        if 0 < len(behind) <= len(here) and any(began[rows[rank]] for rank in shown):
            places[index] = replace(
                place,
                waiters=tuple(here),
                behind=tuple(behind),
                not_begun={rank: issued[rank] for rank in behind},
                row=issued[shown[0]],
            )
            found |= dict.fromkeys(behind, index)
    held = {rank: places[index].not_begun[rank] for rank, index in found.items()}
    for index, place, issued in open_:
        later = [r for r, row in issued.items() if r in held and row > held[r] and unseen[row]]
        if later and not places[index].behind and not {*later}.issuperset(place.waiters):
            waiters = tuple(r for r in place.waiters if r not in later)
            places[index] = replace(place, waiters=waiters, behind=tuple(later))
    return found


def _issued(collectives: CollectiveFacts, place: Place) -> dict[int, int]:
    """Per rank that has reached a place, the row in which it issued the operation."""
    half = place.half
    if half is None:
        return {
            rank: collectives.row_of(place.group, rank, place.seq)
            for rank in sorted({*place.members, *place.waiters})
        }
    return {half.rank: half.row, half.peer: half.partner_row}


def _carried_out(front: Frontiers, row: int) -> int:
    """The row that shows an operation's progress: its batch's, if it is in one."""
    return row if front.batch_row[row] == NONE else int(front.batch_row[row])
