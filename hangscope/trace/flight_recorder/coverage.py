"""How far back a dump's records go, and whether it omits finished ones."""

from __future__ import annotations

import numpy as np

from hangscope.trace.model import Records, State

SMALLEST_BUFFER = 64
"""Nobody configures a recorder with fewer entries."""


def oldest_record(records: Records, *, numbered: bool) -> int:
    """The id of the oldest record, 1 if the recorder has not wrapped (the Flight Recorder counts
    from 0).

    If the collector omits ids, or a reset recorder starts counting again, a group whose sequence
    does not start with its first operation shows that older records are gone.
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
    """Whether the dump lists only unfinished operations.

    Signs are gaps between record ids, counters of finished work without a single finished entry,
    and fewer entries than a wrapped buffer would hold. Without ids: groups whose first entry is not
    their first operation.
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
