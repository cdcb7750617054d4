"""State shared by rings that are read one after another.

It holds memory for their rows, one table of stacks, and what was decoded for earlier rings: ranks
of one program use the same signatures and call sites.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import Group
from hangscope.trace.rings.columns import ColumnReader
from hangscope.trace.row_block import RowBlock
from hangscope.trace.stack_table import StackTable


class RingBatch:
    """Kept while the rings of a job are read.

    Parameters
    ----------
    rows:
        The expected number of rows of all rings together; it may turn out to be wrong.
    """

    def __init__(self, rows: int = 0) -> None:
        self.block = RowBlock(rows)
        self.columns = ColumnReader()
        self.groups = GroupNumbers()
        self.stacks = StackTable()


class GroupNumbers:
    """One table of the groups of all rings, in the order of first use.

    A ring's rows are numbered by this table while they are in cache: renumbering millions of rows
    later would cost as much as reading half of their bytes again.
    """

    def __init__(self) -> None:
        self.table: list[Group] = []
        self._numbers: dict[int, int] = {}  # by identity: hashing thousands of ranks is slow

    def of(self, groups: tuple[Group, ...]) -> npt.NDArray[np.int32] | None:
        """The numbers of a ring's groups; None if one of them lists no members.

        Which group an unlisted one is depends on the rank that mentions it.
        """
        numbers, table = self._numbers, self.table
        found = []
        for group in groups:
            number = numbers.get(id(group))
            if number is None:
                if not group.ranks:
                    return None
                number = numbers[id(group)] = len(table)
                table.append(group)  # keeps the group alive, so its id stays unique
            found.append(number)
        return np.array(found, np.int32)
