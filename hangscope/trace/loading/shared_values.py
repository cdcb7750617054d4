"""Sends values that many ranks share between processes only once.

Every rank of a large job lists all ranks, and all run the same program. Ten thousand dumps hold ten
thousand equal lists of ten thousand numbers, and the same call stacks and signatures, which would
outweigh everything else that a worker sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hangscope.trace.interning import LONG, InternTable
from hangscope.trace.model import Fragment

_MOST_ITEMS = 1 << 22
"""Limit on what a sender keeps: members of lists, frames of stacks, one per signature."""


class Parcel(NamedTuple):
    """A fragment without the values that are sent as numbers."""

    fragment: Fragment
    rank_lists: list[tuple[int, int]]
    """(index of a group in the fragment, number of its list)"""
    signatures: list[int]
    stacks: list[int]


class Packed(NamedTuple):
    """Fragments, and those of their values that were not sent before."""

    parcels: tuple[Parcel, ...]
    fresh: list[Any]


class Sender:
    """Replaces shared values by numbers."""

    def __init__(self) -> None:
        self._sent: InternTable[Any] = InternTable()
        self._items = 0

    def pack(self, fragments: Sequence[Fragment]) -> Packed:
        """Pack fragments for `Receiver.unpack`."""
        first = len(self._sent.values)
        parcels = tuple(map(self._parcel, fragments))
        return Packed(parcels, self._sent.values[first:])

    def _parcel(self, fragment: Fragment) -> Parcel:
        groups = list(fragment.groups)
        rank_lists = []
        for place, group in enumerate(groups):
            number = self._number(group.ranks) if len(group.ranks) >= LONG else None
            if number is not None:
                rank_lists.append((place, number))
                groups[place] = replace(group, ranks=())
        signatures = self._numbers(fragment.signatures)
        stacks = self._numbers(fragment.stacks)
        rest = replace(
            fragment,
            groups=tuple(groups),
            signatures=() if signatures else fragment.signatures,
            stacks=() if stacks else fragment.stacks,
        )
        return Parcel(rest, rank_lists, signatures, stacks)

    def _numbers(self, values: Sequence[Any]) -> list[int]:
        """One number per value; empty if they are sent as they are."""
        if not isinstance(values, tuple):
            return []
        numbers = [number for value in values if (number := self._number(value)) is not None]
        return numbers if len(numbers) == len(values) else []

    def _number(self, value: Any) -> int | None:
        """The number of a value; None for a new value once the limit is reached."""
        number = self._sent.find(value)
        if number is None:
            self._items += len(value) if isinstance(value, tuple) else 1
            number = self._sent.add(value) if self._items <= _MOST_ITEMS else None
        return number


class Receiver:
    """Restores shared values from their numbers."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def unpack(self, packed: Packed) -> tuple[Fragment, ...]:
        """The fragments as they were before `Sender.pack`."""
        self._values += packed.fresh
        return tuple(map(self._opened, packed.parcels))

    def _opened(self, parcel: Parcel) -> Fragment:
        fragment, rank_lists, signatures, stacks = parcel
        value_of = self._values.__getitem__
        groups = list(fragment.groups)
        for place, number in rank_lists:
            groups[place] = replace(groups[place], ranks=value_of(number))
        return replace(
            fragment,
            groups=tuple(groups),
            signatures=tuple(map(value_of, signatures)) or fragment.signatures,
            stacks=tuple(map(value_of, stacks)) or fragment.stacks,
        )
