"""The stacks of a trace, many of them not decoded until somebody looks.

Of the hundreds of call sites that each of thousands of ranks has on record a diagnosis looks at a
few. Stacks of a ring therefore stay what they are in the file, a list of numbers, until asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import NONE, Stack


class StackTable(Sequence[Stack]):
    """Stacks of many sources in one row; sources whose stacks are known share equal ones."""

    def __init__(self) -> None:
        self._parts: list[Sequence[Stack]] = []
        self._starts: list[int] = []
        self._length = 0
        self._known: dict[Stack, int] = {}

    def add(self, stacks: Sequence[Stack]) -> npt.NDArray[np.int32]:
        """Where each of a source's stacks stands here: shape (stacks + 1,).

        The last place is -1, so that the index -1 ("no stack") leads to itself.
        """
        if not isinstance(stacks, tuple):
            start = self._append(stacks)
            places = np.arange(start, start + len(stacks) + 1, dtype=np.int32)
            places[-1] = NONE
            return places
        known = self._known
        fresh = [stack for stack in dict.fromkeys(stacks) if stack not in known]
        if fresh:
            start = self._append(fresh)
            known.update(zip(fresh, range(start, start + len(fresh)), strict=True))
        return np.array([*map(known.__getitem__, stacks), NONE], np.int32)

    def _append(self, stacks: Sequence[Stack]) -> int:
        start = self._length
        self._parts.append(stacks)
        self._starts.append(start)
        self._length += len(stacks)
        return start

    def finished(self) -> Sequence[Stack]:
        """The table, as a plain tuple where nothing in it is waiting to be decoded."""
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
