"""Interns equal values, so that each is kept once and has one number.

Every rank of a large job lists all ranks: ten thousand dumps hold ten thousand equal lists of ten
thousand numbers, which would outweigh everything else.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Generic, TypeVar

from hangscope.trace.model import Group

LONG = 32
"""Lists of ranks with at least this many members are worth interning."""
_MOST_KEPT = 256
"""How many duplicates are also kept for lookup by id; not all duplicates may stay in memory."""

Ranks = tuple[int, ...]
Value = TypeVar("Value", bound=Hashable)


class InternTable(Generic[Value]):
    """Numbers distinct values; an object that was seen before is not hashed again."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}
        self._by_id: dict[int, tuple[Value, int]] = {}
        self._kept = 0

    def find(self, value: Value) -> int | None:
        """The number of a value; None if it is new."""
        known = self._by_id.get(id(value))
        if known is not None:
            return known[1]
        number = self._numbers.get(value)
        if number is not None and self._kept < _MOST_KEPT:
            self._kept += 1
            self._by_id[id(value)] = value, number
        return number

    def add(self, value: Value) -> int:
        """Add a new value and return its number."""
        number = self._numbers[value] = len(self.values)
        self.values.append(value)
        self._by_id[id(value)] = value, number  # keeps the object alive, so its id stays unique
        return number


class GroupInterner:
    """Replaces equal groups by one object."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], Group] = {}
        self._lists: InternTable[Ranks] = InternTable()

    def __call__(self, group: Group) -> Group:
        """The first group seen that equals this one."""
        number = self._lists.find(group.ranks)
        if number is None:
            number = self._lists.add(group.ranks)
        key = (group.name, group.desc, group.epoch, group.backend, group.size, number)
        known = self._groups.get(key)
        if known is None:
            ranks = self._lists.values[number]
            known = self._groups[key] = (
                group if ranks is group.ranks else replace(group, ranks=ranks)
            )
        return known
