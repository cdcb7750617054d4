"""Detects rings that have lost data.

A crashed node leaves pages that were never written; a broken copy leaves zeros. Whatever kills a
recorder, its published records are intact: only a call or two in flight may be missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.ring.checks import RingError
from hangscope.ring.header import RingHeader
from hangscope.ring.layout import ValueKind
from hangscope.trace.model import Records
from hangscope.trace.rings.values import RingValues

_IN_FLIGHT = 4
"""This many threads may have been killed in the middle of a call."""


def reject_damaged(header: RingHeader, table: Records, values: RingValues) -> None:
    """Raise if groups or phases are damaged; without them a ring cannot be compared with others.

    Raises
    ------
    RingError
        If published groups or phases are gone.
    """
    whole = len(table) >= header.groups_used and _are_intact(values, table["name"], ValueKind.TEXT)
    if not whole or not _are_intact(values, table["ranks"], ValueKind.RANKS):
        raise RingError("damaged: its table of process groups is not whole")
    names = [name for name, _, _ in header.open_phases]
    if names and not _are_intact(values, np.array(names), ValueKind.TEXT):
        raise RingError("damaged: the names of its phases are gone")


def _are_intact(values: RingValues, ids: npt.NDArray[Any], kind: ValueKind) -> bool:
    """Whether every id except 0, which means "no value", refers to a value."""
    ids = ids[ids != 0].astype(np.int64)
    return all(start < end for start, end in values.spans(ids, kind))


def records_are_damaged(lost: int, table: Records, slots: Records) -> bool:
    """Whether more records are missing than calls that were in flight.

    Parameters
    ----------
    lost:
        Number of published records that cannot be read.
    table:
        The group table, dtype `hangscope.ring.layout.GROUP`.
    slots:
        The remaining records, dtype `hangscope.ring.layout.SLOT`.
    """
    if not 0 < lost <= _IN_FLIGHT:
        return lost > 0
    # The recorder counts an operation only after its record is complete.
    place = slots["group"].astype(np.int64) - 1
    known = (place >= 0) & (place < len(table))
    for number, counter in (("collective_seq", "enqueued"), ("p2p_seq", "p2p_enqueued")):
        newest = np.zeros(len(table), np.int64)
        np.maximum.at(newest, place[known], slots[number][known])
        if (table[counter] > newest).any():
            return True
    return False
