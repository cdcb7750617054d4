"""Makes equal values of many files the same objects.

Every rank of a large job lists all ranks: ten thousand dumps hold ten thousand equal lists of ten
thousand numbers, which would outweigh everything else.
"""

from __future__ import annotations

from dataclasses import replace

from hangscope.trace.model import Fragment, Group, Signature, Stack

_MOST_KEPT = 256
"""How many duplicates are also kept for lookup by id; not all duplicates may stay in memory."""

Ranks = tuple[int, ...]


class GroupInterner:
    """Replaces equal groups by one object."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], Group] = {}
        self._lists: dict[Ranks, Ranks] = {}
        self._by_id: dict[int, tuple[Ranks, Ranks]] = {}

    def __call__(self, group: Group) -> Group:
        """The first group seen that equals this one."""
        ranks = self._ranks(group.ranks)
        key = (group.name, group.desc, group.epoch, group.backend, group.size, group.place,
               id(ranks))  # fmt: skip
        known = self._groups.get(key)
        if known is None:
            known = group if ranks is group.ranks else replace(group, ranks=ranks)
            self._groups[key] = known
        return known

    def _ranks(self, ranks: Ranks) -> Ranks:
        """The first list that equals this one; an object that was seen before is not hashed."""
        known = self._by_id.get(id(ranks))
        if known is not None:
            return known[1]
        first = self._lists.setdefault(ranks, ranks)
        if len(self._by_id) < _MOST_KEPT or first is ranks:
            self._by_id[id(ranks)] = ranks, first  # keeps the object alive, so its id stays unique
        return first


class Sharing:
    """Replaces equal groups, stacks and signatures of fragments by the same objects."""

    def __init__(self) -> None:
        self._group = GroupInterner()
        self._stacks: dict[Stack, Stack] = {}
        self._signatures: dict[Signature, Signature] = {}

    def __call__(self, fragment: Fragment) -> Fragment:
        """The fragment, with what an earlier one has in common with it."""
        stacks, signatures = self._stacks, self._signatures
        return replace(
            fragment,
            groups=tuple(map(self._group, fragment.groups)),
            stacks=tuple([stacks.setdefault(s, s) for s in fragment.stacks]),
            signatures=tuple([signatures.setdefault(s, s) for s in fragment.signatures]),
        )
