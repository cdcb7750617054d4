"""What shows that a ring has lost a part of what was in it.

A node that crashes leaves pages that were never written, a broken copy leaves zeros. What a
recorder has published is whole, whatever kills it: only a call or two in flight may be missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.ring.header import RingHeader
from hangscope.ring.layout import ValueKind
from hangscope.ring.reader import RingError
from hangscope.trace.model import Records
from hangscope.trace.rings.values import RingValues

_IN_FLIGHT = 4
"""So many threads may have been killed in the middle of a call."""


def refuse_damaged(header: RingHeader, table: Records, values: RingValues) -> None:
    """Without its groups and phases nothing of a ring can be compared with others.

    Raises
    ------
    RingError
        If what was published of them is gone.
    """
    whole = len(table) >= header.groups_used and _are_there(values, table["name"], ValueKind.TEXT)
    if not whole or not _are_there(values, table["ranks"], ValueKind.RANKS):
        raise RingError("damaged: its table of process groups is not whole")
    names = [name for name, _, _ in header.open_phases]
    if names and not _are_there(values, np.array(names), ValueKind.TEXT):
        raise RingError("damaged: the names of its phases are gone")


def _are_there(values: RingValues, ids: npt.NDArray[Any], kind: ValueKind) -> bool:
    """Whether every id but 0, which stands for no value, means something."""
    ids = ids[ids != 0].astype(np.int64)
    return all(start < end for start, end in values.spans(ids, kind))


def records_are_damaged(lost: int, table: Records, slots: Records) -> bool:
    """Whether more is missing than calls that were in flight.

    Parameters
    ----------
    lost:
        Records that were published and cannot be read.
    table:
        The group table, dtype `hangscope.ring.layout.GROUP`.
    slots:
        The records that are left, dtype `hangscope.ring.layout.SLOT`.
    """
    if not 0 < lost <= _IN_FLIGHT:
        return lost > 0
    # An operation is counted once its record is whole.
    place = slots["group"].astype(np.int64) - 1
    known = (place >= 0) & (place < len(table))
    for number, counter in (("collective_seq", "enqueued"), ("p2p_seq", "p2p_enqueued")):
        newest = np.zeros(len(table), np.int64)
        np.maximum.at(newest, place[known], slots[number][known])
        if (table[counter] > newest).any():
            return True
    return False
