"""Interns values that repeat in the entries of a dump, so that each is processed once.

A training loop repeats its groups, shapes and call sites in order, so the successor of a value is
usually the same as last time, and one comparison suffices. All functions accept anything that a
hand-made dump may contain, and take time linear in the file's size.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

MAX_TENSORS = 4096
MAX_DIMS = 32
_SCALARS = frozenset({str, int, bool, type(None)})
_MOST_KEPT, _LONGEST_KEPT = 4_096, 16_384

Row = tuple[Any, ...]
Key = bytes | tuple[int, ...]
Value = TypeVar("Value", bound=Hashable)


class RowInterner:
    """Calls ``make`` once for each distinct row and its key, and remembers the returned index.

    The key is the `marshal` encoding of the raw fields: one fast call that does not hash untrusted
    values and writes shared objects only once, so that nesting cannot blow up.
    """

    def __init__(self, make: Callable[[Row, Key], int]) -> None:
        self._make = make
        self._known: dict[Key, int] = {}
        self._plain: dict[int, Row] = {}
        """For each index, a row that is cheap to compare with, whatever it is compared to."""

    def column(self, rows: Sequence[Row]) -> npt.NDArray[np.int32]:
        """One index per row; ``make`` is called in the order of first use."""
        follower: dict[int, int] = {}
        previous, plain = -1, self._plain
        found = []
        for row in rows:
            guess = follower.get(previous)
            if guess is None or row != plain.get(guess):
                guess = follower[previous] = self._index(row)
            found.append(guess)
            previous = guess
        return np.fromiter(found, np.int32, len(found))

    def _index(self, row: Row) -> int:
        key: Key
        try:
            key = marshal.dumps(row)
        except ValueError:  # nested too deeply, or of a type that marshal does not support
            key = tuple(map(id, row))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._make(row, key)
            if known not in self._plain and all(map(_is_plain, row)):
                self._plain[known] = row
        return known


class ValueTable(Generic[Value]):
    """The distinct values that the rows of one dump make.

    Parameters
    ----------
    make:
        Makes the value of a row; None for index -1.
    made_before:
        Shared by all dumps that this process reads: the ranks of a job run the same code.
    """

    def __init__(
        self, make: Callable[[Row], Value | None], made_before: dict[bytes, Value | None]
    ) -> None:
        self.table: list[Value] = []
        self._make = make
        self._made_before = made_before
        self._by_value: dict[Value, int] = {}

    def column(self, rows: Sequence[Row]) -> npt.NDArray[np.int32]:
        """Index into `table` per row."""
        return RowInterner(self._number).column(rows)

    def _number(self, row: Row, key: Key) -> int:
        before = self._made_before
        if type(key) is not bytes or len(key) > _LONGEST_KEPT:
            value = self._make(row)  # a key made of object ids is not valid for the next dump
        elif key in before:
            value = before[key]
        else:
            if len(before) >= _MOST_KEPT:
                before.clear()
            value = before[key] = self._make(row)
        if value is None:
            return -1
        known = self._by_value.get(value)
        if known is None:
            known = self._by_value[value] = len(self.table)
            self.table.append(value)
        return known


def _is_plain(value: Any) -> bool:
    """Whether this is a name, sizes, dtypes or frames as torch writes them: at most lists of lists
    or of flat dictionaries.
    """
    if type(value) in _SCALARS:
        return True
    if type(value) not in (list, tuple) or len(value) > MAX_TENSORS:
        return False
    if _SCALARS.issuperset(map(type, value)):
        return True
    return all(
        type(item) in (list, tuple, dict)
        and len(item) <= MAX_DIMS
        and _SCALARS.issuperset(map(type, item.values() if type(item) is dict else item))
        for item in value
    )
