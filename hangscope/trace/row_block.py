"""One piece of memory for the rows of many rings.

The slots of a ring are copied straight to where its rows will stand in the trace, so that a
million records are moved once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hangscope.ring.layout import SLOT
from hangscope.trace.model import RECORD_DTYPE, Records

_MOST_ROWS = 1 << 28
"""32 GiB: what claims to need more is left to fail file by file."""


class RowBlock:
    """Room for a number of rows, given out from the beginning.

    Parameters
    ----------
    rows:
        How many rows there may be in all; it may turn out to be wrong.
    """

    def __init__(self, rows: int) -> None:
        try:
            self._rows = np.empty(rows if rows <= _MOST_ROWS else 0, RECORD_DTYPE)
        except MemoryError:
            self._rows = np.empty(0, RECORD_DTYPE)
        self._used = 0

    def take(self, count: int) -> Records:
        """Room for ``count`` slots: an array of `SLOT` with arbitrary content."""
        end = self._used + count
        if end > len(self._rows):
            return np.empty(count, SLOT)
        start, self._used = self._used, end
        return self._rows[start:end].view(SLOT)

    def reuse(self, parts: Sequence[Records]) -> Records | None:
        """The block's own memory for all parts together, where they can be moved up inside it.

        None unless every part lies in the block, in this order.
        """
        at = begin = _address(self._rows)
        for part in parts:
            found = _address(part)
            if found < at:
                return None
            at = found + part.nbytes
        if at > begin + self._rows.nbytes:
            return None
        return self._rows[: sum(map(len, parts))]


def same_place(a: Records, b: Records) -> bool:
    """Whether two arrays begin at the same byte."""
    return _address(a) == _address(b)


def _address(rows: Records) -> int:
    return int(rows.ctypes.data)  # the array interface would describe every field, too
