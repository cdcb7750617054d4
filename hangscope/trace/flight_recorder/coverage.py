"""How far a dump's records go back, and whether finished ones are left out."""

from __future__ import annotations

import numpy as np

from hangscope.trace.model import Records, State

SMALLEST_BUFFER = 64
"""Nobody sets a recorder to fewer entries."""


def oldest_record(records: Records, *, numbered: bool) -> int:
    """1 for a recorder that has not wrapped (the Flight Recorder counts from 0).

    Where a collector left the numbers out, or the recorder was reset and counts anew, a group whose
    sequence does not begin with its first operation shows that older records are gone.
    """
    if not len(records):
        return 0
    ids = records["record_id"][records["record_id"] >= 0]
    if numbered and not len(ids):
        return 0
    if numbered and int(ids.min()) > 0:
        return int(ids.min()) + 1
    _, first = np.unique(records["group"], return_index=True)
    seq = np.maximum(records["collective_seq"], records["p2p_seq"])[first]
    return 2 if (seq > 1).any() or (numbered and (seq == 0).any()) else 1


def lists_active_only(records: Records, members: Records, numbered: bool) -> bool:
    """Whether the dump lists unfinished operations only.

    Told by holes between the record ids, by counters that know of finished work of which no entry
    is left, or by fewer entries than a buffer holds that was overwritten; without ids by groups
    whose first operation is none of their first ones.
    """
    if len(records) and (records["state"] == State.COMPLETED).any():
        return False
    if not len(records):
        return bool(len(members) and (members["enqueued"] > 0).any())
    finished = bool(len(members) and (members["completed"] > 0).any())
    if not numbered:
        return finished or oldest_record(records, numbered=False) > 1
    ids = records["record_id"]
    holes = int(ids.max()) - int(ids.min()) + 1 > len(ids)
    return holes or (int(ids.min()) > 0 and (finished or len(records) < SMALLEST_BUFFER))
