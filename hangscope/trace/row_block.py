"""One block of memory for the rows of many rings.

A ring's slots are copied straight to where its rows will be in the trace, so that a million records
are moved only once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hangscope.ring.layout import SLOT
from hangscope.trace.model import RECORD_DTYPE, Records

_MOST_ROWS = 1 << 28
"""32 GiB; anything that claims to need more is left to fail file by file."""
_HUGE_PAGE = 1 << 21


class RowBlock:
    """Memory for a number of rows, handed out from the start.

    Parameters
    ----------
    rows:
        The expected total number of rows; it may turn out to be wrong.
    """

    def __init__(self, rows: int) -> None:
        try:
            self._rows = _rows_on_huge_pages(rows if rows <= _MOST_ROWS else 0)
        except MemoryError:
            self._rows = np.empty(0, RECORD_DTYPE)
        self._used = 0

    def take(self, count: int) -> Records:
        """Memory for ``count`` slots: an uninitialised array of `SLOT`."""
        end = self._used + count
        if end > len(self._rows):
            return np.empty(count, SLOT)
        start, self._used = self._used, end
        return self._rows[start:end].view(SLOT)

    def reuse(self, parts: Sequence[Records]) -> tuple[Records, int] | None:
        """The block's memory as one array for all parts, if they can be moved up inside it.

        Also returns how many parts, counted from the first, are already in place. None unless every
        part lies in the block, in this order.
        """
        at = begin = _address(self._rows)
        settled = 0
        for number, part in enumerate(parts):
            found = _address(part)
            if found < at:
                return None
            if found == at and settled == number:
                settled += 1
            at = found + part.nbytes
        if at > begin + self._rows.nbytes:
            return None
        return self._rows[: sum(map(len, parts))], settled


def _rows_on_huge_pages(rows: int) -> Records:
    """Memory that starts on a huge page and extends past the end of the last one it needs.

    Numpy asks for huge pages, but the kernel provides them only for whole ones: the ragged ends of
    the memory would be faulted in page by page, at three microseconds each. The excess is never
    touched.
    """
    size = rows * RECORD_DTYPE.itemsize
    if size < _HUGE_PAGE:
        return np.empty(rows, RECORD_DTYPE)
    room = np.empty(size + 2 * _HUGE_PAGE, np.uint8)
    start = -room.ctypes.data % _HUGE_PAGE
    return room[start : start + size].view(RECORD_DTYPE)


def _address(rows: Records) -> int:
    return int(rows.ctypes.data)  # __array_interface__ would also describe every field
