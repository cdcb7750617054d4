"""Interns values that repeat in the entries of a dump, so that each is processed once.

A training loop repeats its groups, shapes and call sites in order, so the successor of a value is
usually the same as last time, and one comparison suffices. All functions accept anything that a
hand-made dump may contain, and take time linear in the file's size.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

MAX_TENSORS = 4096
MAX_DIMS = 32
_SCALARS = frozenset({str, int, bool, type(None)})

Row = tuple[Any, ...]
Key = bytes | tuple[int, ...]
Value = TypeVar("Value")


def index_repeating(
    values: Iterable[Value], index: Callable[[Value], int], plain: Mapping[int, Value]
) -> npt.NDArray[np.int32]:
    """One index per value.

    Parameters
    ----------
    values:
        The values, in order.
    index:
        The index of any value, computed the expensive way.
    plain:
        For each index, a value that is cheap to compare with, whatever it is compared to.
    """
    follower: dict[int, int] = {}
    previous = -1
    found = []
    for value in values:
        guess = follower.get(previous)
        if guess is None or value != plain.get(guess):
            guess = follower[previous] = index(value)
        found.append(guess)
        previous = guess
    return np.fromiter(found, np.int32, len(found))


class RowInterner:
    """Calls ``make`` once for each distinct row and its key, and remembers the returned index.

    The key is the `marshal` encoding of the raw fields: one fast call that does not hash untrusted
    values and writes shared objects only once, so that nesting cannot blow up.
    """

    def __init__(self, make: Callable[[Row, Key], int]) -> None:
        self._make = make
        self._known: dict[Key, int] = {}
        self._plain: dict[int, Row] = {}

    def column(self, rows: Sequence[Row]) -> npt.NDArray[np.int32]:
        """One index per row; ``make`` is called in the order of first use."""
        return index_repeating(rows, self._index, self._plain)

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


def _is_plain(value: Any) -> bool:
    """Whether this is a name, sizes or dtypes as torch writes them: at most lists of lists."""
    if type(value) in _SCALARS:
        return True
    if type(value) not in (list, tuple) or len(value) > MAX_TENSORS:
        return False
    if _SCALARS.issuperset(map(type, value)):
        return True
    return all(
        type(item) in (list, tuple)
        and len(item) <= MAX_DIMS
        and _SCALARS.issuperset(map(type, item))
        for item in value
    )
