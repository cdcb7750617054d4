"""Turns the entries of a Flight Recorder dump into columns without keeping the dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace import clean
from hangscope.trace.flight_recorder.intern import MAX_DIMS, MAX_TENSORS

SEQ_FIELDS = ("collective_seq_id", "seq_id")
"""Where the sequence number is: since dump version 2.0, and before."""

Entry = dict[str, Any]
IntArray = npt.NDArray[np.int64]


class Entries(list[Entry]):
    """The entries of a dump, and the names of all fields that any of them has."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        super().__init__(entries)
        self.names: frozenset[Any] = self._names()

    def _names(self) -> frozenset[Any]:
        if not self:
            return frozenset()
        if len(set(map(len, self))) > 1:
            return frozenset().union(*self)
        # Entries of one recorder have the same fields, except those that depend on the operation
        # (a root, a reduce op). Looking at one entry per operation is enough.
        try:
            few = dict(zip(map(itemgetter("profiling_name"), self), self, strict=True)).values()
        except (KeyError, TypeError):
            return frozenset().union(*self)
        return frozenset().union(self[len(self) // 2], *few)


def pick(entries: Entries, *names: str) -> str | None:
    """The first of a field's names in several versions that any entry has."""
    for name in names:
        if name in entries.names:
            return name
    return None


def values_of(entries: Sequence[Entry], name: str) -> list[Any]:
    """One value per entry; None if an entry lacks the field."""
    try:
        return list(map(itemgetter(name), entries))
    except KeyError:
        return [entry.get(name) for entry in entries]


def rows_of(entries: Sequence[Entry], names: Sequence[str | None]) -> list[tuple[Any, ...]]:
    """Several fields per entry as tuples; None for fields that are absent."""
    if None not in names and len(names) > 1:
        try:
            return list(map(itemgetter(*names), entries))
        except KeyError:
            pass
    return [tuple([None if n is None else entry.get(n) for n in names]) for entry in entries]


def int_column(entries: Entries, default: int, *names: str) -> IntArray:
    """One integer per entry; ``default`` if it is absent, null or not a number."""
    name = pick(entries, *names)
    if name is None:
        return np.full(len(entries), default, np.int64)
    values = values_of(entries, name)
    if type(values[0]) is str:  # thread ids are strings with few distinct values
        return _few_texts(values, default)
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        pass
    fixed = [v if type(v) is int else clean.as_int(v, default) for v in values]
    try:
        return np.fromiter(fixed, np.int64, len(fixed))
    except OverflowError:
        return np.fromiter((clean.as_int(v, default) for v in fixed), np.int64, len(fixed))


def _few_texts(values: Sequence[Any], default: int) -> IntArray:
    known: dict[Any, int] = {}
    found = []
    for value in values:
        try:
            number = known.get(value)
        except TypeError:
            number = clean.as_int(value, default)
        if number is None:
            number = known[value] = clean.as_int(value, default)
        found.append(number)
    return np.fromiter(found, np.int64, len(found))


def bool_column(entries: Entries, *names: str) -> npt.NDArray[np.bool_] | None:
    """One truth value per entry, or None if no entry has the field."""
    name = pick(entries, *names)
    if name is None:
        return None
    values = values_of(entries, name)
    try:
        return np.fromiter(map(_TRUTH.__getitem__, values), bool, len(values))
    except (KeyError, TypeError):
        pass
    return np.fromiter((v is True or (v is not False and clean.as_bool(v)) for v in values), bool)


_TRUTH = {True: True, False: False, None: False}


def sizes(value: Any) -> tuple[tuple[int, ...], ...] | None:
    """Shapes from lists of lists of numbers, which may be strings."""
    if not isinstance(value, (list, tuple)):
        return None
    rows: list[tuple[int, ...]] = []
    for row in value[:MAX_TENSORS]:
        if not isinstance(row, (list, tuple)):
            return None
        rows.append(tuple(clean.as_int(n, -1) for n in row[:MAX_DIMS]))
    return tuple(rows)


def numbers(value: Any) -> tuple[int, ...] | None:
    """Split sizes; None if the value is not a list."""
    if not isinstance(value, (list, tuple)):
        return None
    return tuple(clean.as_int(n, -1) for n in value[:MAX_TENSORS])


def dtypes(value: Any) -> tuple[str, ...] | None:
    """dtype names from a list or one bare string."""
    if isinstance(value, str):
        return (_dtype(value),) if value else None
    if not isinstance(value, (list, tuple)):
        return None
    return tuple(_dtype(clean.as_name(item)) for item in value[:MAX_TENSORS])


_DTYPES = {
    "float32": "Float",
    "float": "Float",
    "float64": "Double",
    "double": "Double",
    "float16": "Half",
    "half": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "long": "Long",
    "int32": "Int",
    "int": "Int",
    "int16": "Short",
    "short": "Short",
    "int8": "Char",
    "char": "Char",
    "uint8": "Byte",
    "byte": "Byte",
    "bool": "Bool",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
}


def _dtype(text: str) -> str:
    bare = clean.name(text.removeprefix("torch."))
    return _DTYPES.get(bare.lower(), bare)
