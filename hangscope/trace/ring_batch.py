"""What rings that are read one after another share.

Memory for their rows, one table of stacks, and what was found for the ring before: ranks of one
program use the same signatures and call sites.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import NONE
from hangscope.trace.ring_values import Ids, Recent
from hangscope.trace.row_block import RowBlock
from hangscope.trace.stack_table import StackTable

_DENSE = 1 << 20


class RingBatch:
    """Kept while the rings of a job are read.

    Parameters
    ----------
    rows:
        How many rows all of them may have; it may turn out to be wrong.
    """

    def __init__(self, rows: int = 0) -> None:
        self.block = RowBlock(rows)
        self.stacks = StackTable()
        self.recent = Recent()
        self.signature_ids = Numbering()
        self.stack_ids = Numbering()


class Numbering:
    """Gives the ids that a ring's rows use numbers from 0 on.

    The numbers given for the ring before are used again where they cover all ids of this one.
    """

    def __init__(self) -> None:
        self._ids: Ids = np.zeros(0, np.int64)
        self._places = np.full(1, NONE, np.int32)

    def of(self, ids: npt.NDArray[np.uint32]) -> tuple[Ids, npt.NDArray[np.int32]]:
        """Ids, ascending, all of the column's among them, and for each row the place of its id.

        Parameters
        ----------
        ids:
            Shape (rows,).
        """
        place = self._places.take(ids, mode="clip")  # the last place stands for all others
        if not len(place) or int(place.min()) == NONE:
            self._ids, place, self._places = _numbered(ids)
        return self._ids, place


def _numbered(
    ids: npt.NDArray[np.uint32],
) -> tuple[Ids, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The distinct ids, each row's place among them, and the place of every id up to the highest,
    with `NONE` for those that do not occur and, at the end, for all above."""
    highest = int(ids.max(initial=0))
    if highest >= _DENSE:  # no ring's area is as large as that; the ids are invented
        distinct, place = np.unique(ids.astype(np.int64), return_inverse=True)
        return distinct, place.astype(np.int32), np.full(1, NONE, np.int32)
    seen = np.zeros(highest + 2, np.bool_)
    seen[ids] = True
    distinct = np.flatnonzero(seen)
    places = np.full(highest + 2, NONE, np.int32)
    places[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, places.take(ids), places
