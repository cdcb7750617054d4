"""Long lists of ranks are kept, hashed and sent between processes once.

Every rank of a large job lists all ranks: ten thousand dumps hold ten thousand equal lists of ten
thousand numbers, which would outweigh everything else that is done with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangscope.trace.model import Fragment, Group

_LONG = 32
"""Members from which a list is worth a place in a table."""
_MOST_RANKS = 1 << 22
"""Bound on what a sender keeps, in members of all lists; further ones stay where they are."""

_MOST_KEPT = 256
"""Lists that are known by their address; equal ones that are read anew must not all stay."""

Ranks = tuple[int, ...]
Packed = tuple[tuple[Fragment, ...], list[tuple[int, int, int]], list[Ranks]]
"""Fragments without their long lists; which list belongs where, as (fragment, group, number of the
list); the lists that were not sent before."""


class _Lists:
    """Equal lists have one number; a long one that was seen before is not hashed again."""

    def __init__(self) -> None:
        self.lists: list[Ranks] = []
        self._numbers: dict[Ranks, int] = {}
        self._by_id: dict[int, tuple[Ranks, int]] = {}

    def find(self, ranks: Ranks) -> int | None:
        """The number of a list, None for one that is new."""
        known = self._by_id.get(id(ranks))
        if known is not None:
            return known[1]
        number = self._numbers.get(ranks)
        if number is not None:
            self._keep(ranks, number)
        return number

    def add(self, ranks: Ranks) -> int:
        """The number of a list that is new."""
        number = self._numbers[ranks] = len(self.lists)
        self.lists.append(ranks)
        self._keep(ranks, number)
        return number

    def _keep(self, ranks: Ranks, number: int) -> None:
        if len(ranks) >= _LONG and len(self._by_id) < _MOST_KEPT:
            self._by_id[id(ranks)] = ranks, number  # kept, so its address stays its own


class Sender:
    """The end of a connection that takes long lists out of fragments."""

    def __init__(self) -> None:
        self._lists = _Lists()
        self._kept = 0

    def pack(self, fragments: Sequence[Fragment]) -> Packed:
        """What `Receiver.unpack` makes the same fragments of."""
        places: list[tuple[int, int, int]] = []
        fresh: list[Ranks] = []
        packed = []
        for at, fragment in enumerate(fragments):
            groups = list(fragment.groups)
            for place, group in enumerate(groups):
                if len(group.ranks) < _LONG:
                    continue
                number = self._number(group.ranks, fresh)
                if number is not None:
                    places.append((at, place, number))
                    groups[place] = replace(group, ranks=())
            packed.append(replace(fragment, groups=tuple(groups)))
        return tuple(packed), places, fresh

    def _number(self, ranks: Ranks, fresh: list[Ranks]) -> int | None:
        number = self._lists.find(ranks)
        if number is None and self._kept + len(ranks) <= _MOST_RANKS:
            self._kept += len(ranks)
            number = self._lists.add(ranks)
            fresh.append(ranks)
        return number


class Receiver:
    """The other end."""

    def __init__(self) -> None:
        self._lists: list[Ranks] = []

    def unpack(self, packed: Packed) -> tuple[Fragment, ...]:
        """The fragments as they were before `Sender.pack`."""
        fragments, places, fresh = packed
        self._lists += fresh
        if not places:
            return fragments
        groups = [list(fragment.groups) for fragment in fragments]
        for at, place, number in places:
            groups[at][place] = replace(groups[at][place], ranks=self._lists[number])
        return tuple(
            replace(fragment, groups=tuple(own))
            for fragment, own in zip(fragments, groups, strict=True)
        )


class SharedGroups:
    """Makes equal groups the same object."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], Group] = {}
        self._lists = _Lists()

    def __call__(self, group: Group) -> Group:
        """The first group that is equal."""
        number = self._lists.find(group.ranks)
        if number is None:
            number = self._lists.add(group.ranks)
        key = (group.name, group.desc, group.epoch, group.backend, group.size, number)
        known = self._groups.get(key)
        if known is None:
            ranks = self._lists.lists[number]
            known = self._groups[key] = (
                group if ranks is group.ranks else replace(group, ranks=ranks)
            )
        return known
