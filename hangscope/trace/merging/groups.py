"""Matches process groups across sources.

Names repeat: sibling groups of a split share one, and a group that is destroyed and recreated gets
its old one back. Members and epoch distinguish them. Descriptions never do, because ranks may
disagree about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.trace import formats, operations
from hangscope.trace.model import MAX_RANK, NONE, Fragment, Group, Records, Signature

_Key = tuple[str, frozenset[int], int]
_DEFAULTS = ("default_pg", "default")


class GroupMatcher:
    """Maps every fragment's groups to indexes in one common table."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self.groups: list[Group] = []
        self._maps: dict[int, npt.NDArray[np.int32]] = {}
        self._index: dict[_Key, int] = {}
        self._by_name: dict[tuple[str, int], list[int]] = {}
        self._descs: dict[int, Counter[str]] = {}
        self._members: dict[int, frozenset[int]] = {}
        self._placed: dict[int, tuple[Group, int]] = {}
        self._common: tuple[Sequence[Group], npt.NDArray[np.int32] | None] | None = None
        shifts = _epoch_shifts(fragments)
        self._whole = _complete_handmade_groups(fragments)
        # Groups with members first: those without are matched against them.
        for wanted in (True, False):
            for fragment in fragments:
                for place, group in enumerate(fragment.groups):
                    if bool(group.ranks) is wanted:
                        if shifts and (shift := shifts.get((id(fragment), group.name), 0)):
                            group = replace(group, epoch=group.epoch + shift)
                        self._place(fragment, place, group)

    def map_of(self, fragment: Fragment) -> npt.NDArray[np.int32]:
        """The common index of each local group; a final -1 maps index -1 to itself."""
        found = self._maps.get(id(fragment))
        return found if found is not None else np.array([NONE], np.int32)

    def renumbering(self, fragment: Fragment) -> npt.NDArray[np.int32] | None:
        """The same for the ``group`` column of its records; None if that needs no change."""
        table = fragment.common_groups
        if table is None:
            return _unless_same(self.map_of(fragment))
        if self._common is None or self._common[0] is not table:
            # A group that is listed by no fragment has no records either.
            places = [self._placed.get(id(group), (group, NONE))[1] for group in table]
            self._common = table, _unless_same(np.array([*places, NONE], np.int32))
        return self._common[1]

    def _place(self, fragment: Fragment, place: int, group: Group) -> None:
        mapping = self._maps.get(id(fragment))
        if mapping is None:
            mapping = np.full(len(fragment.groups) + 1, NONE, np.int32)
            self._maps[id(fragment)] = mapping
        # In a large job all ranks list the same members, often as one shared object.
        seen = self._placed.get(id(group))
        index = self._index_of(group, fragment.facts.rank) if seen is None else seen[1]
        mapping[place] = index
        if group.desc:
            self._descs.setdefault(index, Counter())[group.desc] += 1

    def _index_of(self, group: Group, rank: int) -> int:
        if group.place is not None and (whole := self._whole.get(_handmade_key(group))):
            found = self._index_of(replace(group, ranks=whole, place=None), rank)
            self._placed[id(group)] = (group, found)
            return found
        if group.ranks:
            members = self._members.get(id(group.ranks))
            if members is None:
                members = self._members[id(group.ranks)] = frozenset(group.ranks)
            key = (group.name, members, group.epoch)
            index = self._index.get(key)
            if index is None:
                index = self._add(key, group)
            self._placed[id(group)] = (group, index)
        else:
            index = self._find_by_name(group, rank)
        known = self.groups[index]
        if not known.backend or known.size is None:
            self.groups[index] = replace(
                known,
                backend=known.backend or group.backend,
                size=known.size if known.size is not None else group.size,
            )
        return index

    def _add(self, key: _Key, group: Group) -> int:
        index = self._index[key] = len(self.groups)
        self.groups.append(group)
        self._by_name.setdefault((group.name, group.epoch), []).append(index)
        return index

    def _find_by_name(self, group: Group, rank: int) -> int:
        """The group of this name that the rank can belong to, or a new one without members."""
        same = self._by_name.get((group.name, group.epoch), [])
        with_rank = [i for i in same if rank in self.groups[i].ranks]
        if len(with_rank) == 1:
            return with_rank[0]
        listed = [i for i in same if self.groups[i].ranks]
        if rank == NONE and len(listed) == 1:
            return listed[0]
        if not same and group.desc in _DEFAULTS:
            default = [
                i
                for i, g in enumerate(self.groups)
                if g.desc in _DEFAULTS and g.epoch == group.epoch
            ]
            if len(default) == 1:
                return default[0]
        key: _Key = (group.name, frozenset(), group.epoch)
        index = self._index.get(key)
        return self._add(key, group) if index is None else index

    def complete(
        self, world_size: int | None, implied: Records, sizes: Mapping[int, int]
    ) -> tuple[Group, ...]:
        """The common table, with members filled in where no source listed them.

        The default group contains all ranks. Any other group contains the ranks that used it,
        unless sizes in its records show that members are missing. ``implied`` has a row for every
        rank and group with records.
        """
        users = _users(implied)
        finished: list[Group] = []
        for index, group in enumerate(self.groups):
            descs = self._descs.get(index, Counter())
            telling = [d for d, _ in descs.most_common() if d != "undefined"]
            desc = telling[0] if telling else (group.desc or next(iter(descs), ""))
            ranks, size = group.ranks, group.size
            if not ranks:
                size = size if size is not None else sizes.get(index)
                ranks = _likely_members(group.name, desc, world_size, size, users.get(index, ()))
            finished.append(
                replace(
                    group,
                    desc=desc,
                    ranks=ranks,
                    size=len(ranks) if ranks and group.place is None else size,
                    listed=bool(group.ranks),
                )
            )
        return tuple(finished)


_HandmadeKey = tuple[str, int, int | None]


def _handmade_key(group: Group) -> _HandmadeKey:
    """What the members of a group built from a store, rank and size have in common."""
    return group.name, group.epoch, group.size


def _complete_handmade_groups(fragments: Sequence[Fragment]) -> dict[_HandmadeKey, tuple[int, ...]]:
    """The members, by group rank, of handmade groups in which each place has exactly one rank.

    If several groups of one name met at one store, or a group spans several jobs, places stay empty
    or are taken twice.
    """
    taken: dict[_HandmadeKey, dict[int, int]] = {}
    twice: set[_HandmadeKey] = set()
    for fragment in fragments:
        for group in fragment.groups:
            if group.place is None or group.is_side:
                continue  # those of NCCL's are joined when all that it told is there
            places = taken.setdefault(_handmade_key(group), {})
            if places.setdefault(group.place, group.ranks[0]) != group.ranks[0]:
                twice.add(_handmade_key(group))
    return {
        key: tuple(places[place] for place in sorted(places))
        for key, places in taken.items()
        if key not in twice and len(places) == key[2]
    }


def _likely_members(
    name: str, desc: str, world_size: int | None, size: int | None, users: tuple[int, ...]
) -> tuple[int, ...]:
    if desc in _DEFAULTS or (name in ("0", "") and size == world_size):
        everybody = world_size or size
        if everybody and (not users or users[-1] < everybody):
            return tuple(range(everybody))
    if size is not None and size != len(users):
        return ()
    return users if len(users) > 1 else ()


def _unless_same(places: npt.NDArray[np.int32]) -> npt.NDArray[np.int32] | None:
    """The map, or None if it is the identity."""
    return None if places[:-1].tolist() == list(range(len(places) - 1)) else places


def _users(implied: Records) -> dict[int, tuple[int, ...]]:
    """The ranks with records in each group."""
    found: dict[int, set[int]] = {}
    for rank, group in zip(implied["rank"].tolist(), implied["group"].tolist(), strict=True):
        found.setdefault(group, set()).add(rank)
    return {group: tuple(sorted(ranks)) for group, ranks in found.items()}


def sizes_from_gathers(fragments: Sequence[Fragment], matcher: GroupMatcher) -> dict[int, int]:
    """The sizes of unlisted groups, from the ratio of output to input sizes of even gathers."""
    votes: dict[int, Counter[int]] = {}
    for fragment in fragments:
        open_ = [i for i, g in enumerate(fragment.groups) if not g.ranks]
        factors = np.array(
            [gather_factor(s) for s in fragment.signatures] if open_ else [], np.int64
        )
        if not len(fragment.records) or not factors.any():
            continue
        mapping = matcher.map_of(fragment)
        group = fragment.records["group"]
        per_row = factors[fragment.records["signature"]]
        for index in open_:
            counts = Counter(per_row[(group == index) & (per_row > 0)].tolist())
            votes.setdefault(int(mapping[index]), Counter()).update(counts)
    return {group: vote.most_common(1)[0][0] for group, vote in votes.items() if vote}


def gather_factor(signature: Signature) -> int:
    """How many members a gather or scatter has, by its sizes; 0 if they do not tell."""
    op = operations.family(signature.op)
    ins = numel(signature.input_sizes, signature.input_numel)
    outs = numel(signature.output_sizes, signature.output_numel)
    if not ins or not outs:
        return 0
    if "reduce_scatter" in op:
        ins, outs = outs, ins
    elif "all_gather" not in op:
        return 0
    # A group of more members than a job can have is damage.
    return outs // ins if outs % ins == 0 and outs // ins <= MAX_RANK + 1 else 0


def numel(sizes: tuple[tuple[int, ...], ...] | None, total: int | None) -> int | None:
    """Elements of all tensors of one side; None if unknown."""
    if sizes is None:
        return total
    count = 0
    for shape in sizes:
        product = 1
        for dim in shape:
            product *= dim
        count += product
    return count


def _epoch_shifts(fragments: Sequence[Fragment]) -> dict[tuple[int, str], int]:
    """How far each dump's epochs must be shifted so that the newest ones match.

    A recorder numbers the epochs of a group that it still remembers. A rank whose buffer has
    dropped the first epoch calls the second one 0. Rings number epochs correctly and are not
    shifted.
    """
    lives: dict[str, dict[int, int]] = {}
    for number, fragment in enumerate(fragments):
        if fragment.source.format in formats.DUMPS:
            for group in fragment.groups:
                own = lives.setdefault(group.name, {})
                own[number] = max(own.get(number, 0), group.epoch)
    shifts: dict[tuple[int, str], int] = {}
    for name, own in lives.items():
        newest = max(own.values())
        if newest == 0:
            continue
        starts = [
            start
            for number, epoch in own.items()
            if epoch == newest
            and (start := _first_use(fragments[number], name, newest, last=False))
        ]
        began = min(starts, default=0)
        for number, epoch in own.items():
            last = _first_use(fragments[number], name, epoch, last=True)
            if epoch < newest and not (0 < last < began):
                shifts[(id(fragments[number]), name)] = newest - epoch
    return shifts


def _first_use(fragment: Fragment, name: str, epoch: int, *, last: bool) -> int:
    index = next(
        (i for i, g in enumerate(fragment.groups) if g.name == name and g.epoch == epoch), NONE
    )
    times = fragment.records["created_ns"][fragment.records["group"] == index]
    times = times[times > 0]
    if not len(times):
        return 0
    return int(times.max() if last else times.min())
