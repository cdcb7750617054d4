"""The stacks of a trace, most of which are decoded only on access.

Thousands of ranks each have hundreds of call sites on record, and a diagnosis looks at a few. A
ring's stacks therefore stay encoded, as lists of numbers, until they are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import NONE, Stack


class StackTable(Sequence[Stack]):
    """The stacks of many sources in one sequence; decoded stacks are deduplicated."""

    def __init__(self) -> None:
        self._parts: list[Sequence[Stack]] = []
        self._starts: list[int] = []
        self._length = 0
        self._known: dict[Stack, int] = {}
        self._shared: dict[int, int] = {}

    def translate(self, stacks: Sequence[Stack], column: npt.NDArray[np.int32]) -> None:
        """Map a column of indexes into a source's stacks, in place, to indexes into this table.

        Parameters
        ----------
        stacks:
            The source's stacks; they are added to this table.
        column:
            Shape (rows,); -1 ("no stack") stays.
        """
        if not isinstance(stacks, tuple):
            start = self._start_of(stacks)
            if start:
                np.add(column, np.int32(start), out=column, where=column != NONE)
            return
        known = self._known
        fresh = [stack for stack in dict.fromkeys(stacks) if stack not in known]
        if fresh:
            start = self.append(fresh)
            known.update(zip(fresh, range(start, start + len(fresh)), strict=True))
        places = np.array([*map(known.__getitem__, stacks), NONE], np.int32)
        column[:] = places[column.astype(np.intp)]

    def append(self, stacks: Sequence[Stack]) -> int:
        """Append stacks without deduplication; returns the index of the first."""
        start = self._length
        self._parts.append(stacks)
        self._starts.append(start)
        self._length += len(stacks)
        return start

    def _start_of(self, stacks: Sequence[Stack]) -> int:
        """The index of the first of these encoded stacks; a shared sequence is added only once."""
        start = self._shared.get(id(stacks))
        if start is None:
            # The table keeps the sequence alive, so its id stays unique.
            start = self._shared[id(stacks)] = self.append(stacks)
        return start

    def finished(self) -> Sequence[Stack]:
        """The table, as a plain tuple if all of its stacks are decoded."""
        return tuple(self._known) if len(self._known) == self._length else self

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Stack: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Stack]: ...

    def __getitem__(self, index: int | slice) -> Stack | Sequence[Stack]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._length)))
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(index)
        part = bisect_right(self._starts, place) - 1
        return self._parts[part][place - self._starts[part]]
