"""The group, signature and stack of each record of a ring, as columns of indexes.

Ranks of one program at the same point mention the same values in the same order, so what was
derived from one ring's columns can be reused for the next if they compare equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.ring.layout import SLOT
from hangscope.trace.merging.records import GroupOrder, counters_of, order_by_group
from hangscope.trace.model import NONE, Records

Ids = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

_DENSE = 1 << 20


def _neighbours(*names: str) -> np.dtype[np.void]:
    """Adjacent fields of a slot as a single field."""
    assert SLOT.names is not None
    assert SLOT.fields is not None
    first = SLOT.names.index(names[0])
    assert SLOT.names[first : first + len(names)] == names
    size = sum(SLOT[name].itemsize for name in names)
    return np.dtype(
        {
            "names": ["all"],
            "formats": [f"V{size}"],
            "offsets": [SLOT.fields[names[0]][1]],
            "itemsize": SLOT.itemsize,
        }
    )


_MENTIONED = _neighbours("group", "signature", "stack")
_NUMBERS = _neighbours("collective_seq", "p2p_seq")
_STATES = _neighbours("state", "flags")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one ring, each of shape (rows,)."""

    group: Places
    """Index into the ring's group table."""
    highest_group: int
    order: GroupOrder
    signature: Places
    """Index into ``signature_ids``, which ascend."""
    signature_ids: Ids
    stack: Places
    """Index into ``stack_ids``, which ascend."""
    stack_ids: Ids
    without_stack: npt.NDArray[np.intp]
    """The rows whose ``stack`` is -1."""


class ColumnReader:
    """Reads the columns of rings, one ring after another."""

    def __init__(self) -> None:
        self._mentioned = b""
        self._signatures, self._stacks = Numbering(), Numbering()
        self._columns: Columns | None = None
        self._counters: tuple[Columns, tuple[bytes, bytes], Records] | None = None

    def of(self, slots: Records, group_count: int) -> tuple[Records, Columns]:
        """The slots whose group is in the ring's table, and their columns.

        Parameters
        ----------
        slots:
            Shape (records,), dtype `hangscope.ring.layout.SLOT`.
        group_count:
            Size of the ring's group table.
        """
        columns = self._columns_of(slots)
        if columns.highest_group >= group_count:
            slots = slots[columns.group.view(np.uint32) < group_count]
            columns = self._columns_of(slots)
        return slots, columns

    def counters_of(self, rows: Records, columns: Columns) -> Records:
        """The group counters that records imply (`hangscope.trace.merging.records`).

        Parameters
        ----------
        rows:
            Slots that have become rows of dtype `RECORD_DTYPE`.
        columns:
            Their columns.
        """
        told = _bytes_of(rows, _NUMBERS), _bytes_of(rows, _STATES)
        known = self._counters
        if known is None or known[0] is not columns or known[1] != told:
            known = self._counters = columns, told, counters_of(rows, columns.order)
        implied: Records = known[2].copy()
        if len(rows):
            implied["rank"] = rows["rank"][0]
        return implied

    def _columns_of(self, slots: Records) -> Columns:
        mentioned = _bytes_of(slots, _MENTIONED)
        known = self._columns
        if known is None or mentioned != self._mentioned:
            known = self._columns = self._read(mentioned)
            self._mentioned = mentioned
        return known

    def _read(self, mentioned: bytes) -> Columns:
        groups, signatures, stacks = np.frombuffer(mentioned, "<u4").reshape(-1, 3).T
        group = groups - np.uint32(1)  # 0 (no group) wraps to the highest number
        signature_ids, signature = self._signatures.of(signatures)
        stack_ids, stack = self._stacks.of(stacks)
        without_stack = np.flatnonzero(stacks == 0)
        stack[without_stack] = NONE
        return Columns(
            group=group.view(np.int32),
            highest_group=int(group.max(initial=0)),
            order=order_by_group(group.view(np.int32)),
            signature=signature,
            signature_ids=signature_ids,
            stack=stack,
            stack_ids=stack_ids,
            without_stack=without_stack,
        )


def _bytes_of(table: Records, part: np.dtype[np.void]) -> bytes:
    """Fields of all slots or rows, copied in one pass."""
    column: Records = table.view(part)["all"]
    return column.tobytes()


class Numbering:
    """Numbers the ids used by a ring's rows from 0.

    The previous ring's numbers are reused if they cover all ids of this one.
    """

    def __init__(self) -> None:
        self._ids: Ids = np.zeros(0, np.int64)
        self._places = np.full(1, NONE, np.int32)

    def of(self, ids: npt.NDArray[np.uint32]) -> tuple[Ids, Places]:
        """Ascending ids that include all of the column's, and each row's index among them.

        Parameters
        ----------
        ids:
            Shape (rows,).
        """
        place = self._places.take(ids, mode="clip")  # the last place is for all higher ids
        if not len(place) or int(place.min()) == NONE:
            self._ids, place, self._places = _numbered(ids)
        return self._ids, place


def _numbered(ids: npt.NDArray[np.uint32]) -> tuple[Ids, Places, Places]:
    """The distinct ids, each row's index among them, and the index of every id up to the highest:
    `NONE` for unused ids and, at the end, for all higher ones.
    """
    highest = int(ids.max(initial=0))
    if highest >= _DENSE:  # beyond any ring's value area, so the ids are corrupt
        distinct, place = np.unique(ids.astype(np.int64), return_inverse=True)
        return distinct, place.astype(np.int32), np.full(1, NONE, np.int32)
    seen = np.zeros(highest + 2, np.bool_)
    seen[ids] = True
    distinct = np.flatnonzero(seen)
    places = np.full(highest + 2, NONE, np.int32)
    places[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, places.take(ids), places
