"""Tables of integers as a few bytes: what neighbouring ranks have in common costs nothing.

The ranks of a job do the same things a little apart. A row is therefore stored as its difference
from the row in the same place of the rank before, and the bytes of the differences by significance,
most of which are zero; what compresses the whole then leaves little of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def encode_table(rows: Ints, counts: Ints) -> bytes:
    """The bytes of a table.

    Parameters
    ----------
    rows:
        Shape (rows, columns).
    counts:
        Shape (ranks,): how many successive rows each rank has.
    """
    before = _predecessors(counts)
    known = before >= 0
    with np.errstate(over="ignore"):
        change = rows.copy()
        change[known] -= rows[before[known]]
    zigzag = (change << 1) ^ (change >> 63)
    planes = np.ascontiguousarray(zigzag.T).view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(planes.T).tobytes()


def decode_table(raw: bytes, columns: int, counts: Ints) -> Ints:
    """The inverse of `encode_table`.

    Raises
    ------
    ValueError
        If the sizes do not agree.
    """
    total = int(counts.sum())
    if len(raw) != total * columns * 8:
        raise ValueError("a table of another size")
    planes = np.frombuffer(raw, np.uint8).reshape(8, -1)
    words = np.ascontiguousarray(planes.T).view(np.uint64).reshape(columns, total).T
    change = (words >> np.uint64(1)).astype(np.int64) ^ -(words & np.uint64(1)).astype(np.int64)
    rows = np.ascontiguousarray(change)
    with np.errstate(over="ignore"):
        at = 0
        previous = 0
        for count in counts.tolist():
            shared = min(count, previous)
            rows[at : at + shared] += rows[at - previous : at - previous + shared]
            if count > shared:
                # Rows beyond those of the rank before follow their own predecessor.
                start = at + shared
                rows[start : at + count].cumsum(axis=0, out=rows[start : at + count])
                if start > 0:
                    rows[start : at + count] += rows[start - 1]
            at, previous = at + count, count
    return rows


def _predecessors(counts: Ints) -> Ints:
    """For each row the row that it is compared with; -1 for the first."""
    total = int(counts.sum())
    starts = np.cumsum(counts) - counts
    place = np.arange(total) - np.repeat(starts, counts)
    previous = np.concatenate([np.zeros(1, np.int64), counts])[: len(counts)]
    before_start = np.repeat(starts - previous, counts)
    shared = place < np.repeat(previous, counts)
    found: Ints = np.where(shared, before_start + place, np.arange(total) - 1)
    return found
