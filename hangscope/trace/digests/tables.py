"""What many ranks share: groups, signatures and stacks, each once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hangscope.trace import clean
from hangscope.trace.facts_codec import Decoder, Encoder
from hangscope.trace.model import MAX_RANK, Group, Signature, Stack


class Tables:
    """Groups, signatures and stacks of the ranks of many nodes, numbered in order of arrival."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.signatures: list[Signature] = []
        self.stacks: list[Stack] = []
        self._groups: dict[tuple[object, ...], int] = {}
        self._by_identity: dict[int, int] = {}
        self._signatures: dict[Signature, int] = {}
        self._stacks: dict[Stack, int] = {}
        self._ranks: dict[tuple[tuple[int, int, int], ...], tuple[int, ...]] = {}
        self._kept: dict[int, tuple[int, ...]] = {}
        """Those of `ranks_of`, by identity."""

    def group(self, group: Group) -> int:
        """The number of a group."""
        at = self._by_identity.get(id(group))
        if at is not None and self.groups[at] is group:
            return at
        ranks = group.ranks
        if self._kept.get(id(ranks)) is not ranks:
            ranks = self.ranks_of(runs_of(ranks))
        key = (group.name, group.desc, id(ranks), group.epoch, group.backend, group.size,
               group.listed, group.place)  # fmt: skip
        at = self._groups.setdefault(key, len(self.groups))
        if at == len(self.groups):
            self.groups.append(replace(group, ranks=ranks))
            self._by_identity[id(self.groups[at])] = at
        return at

    def signature(self, signature: Signature) -> int:
        """The number of a signature."""
        at = self._signatures.setdefault(signature, len(self.signatures))
        if at == len(self.signatures):
            self.signatures.append(signature)
        return at

    def stack(self, stack: Stack) -> int:
        """The number of a stack."""
        at = self._stacks.setdefault(stack, len(self.stacks))
        if at == len(self.stacks):
            self.stacks.append(stack)
        return at

    def ranks_of(self, runs: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
        """Ranks from their runs; one object for all groups with the same members."""
        known = self._ranks.get(runs)
        if known is None:
            listed = [rank for start, step, count in runs for rank in _run(start, step, count)]
            known = self._ranks[runs] = tuple(listed)
            self._kept[id(known)] = known
        return known


def runs_of(ranks: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Ranks as runs of (first, step, count): all ranks of a job are one."""
    if isinstance(ranks, range):
        return ((ranks.start, ranks.step, len(ranks)),)
    runs: list[tuple[int, int, int]] = []
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        runs.append((ranks[at], step, end - at))
        at = end
    return tuple(runs)


def encode_group(group: Group) -> list[Any]:
    """A group as builtins."""
    return [group.name, group.desc, group.epoch, group.backend, group.size, group.listed,
            group.place, runs_of(group.ranks)]  # fmt: skip


def decode_group(said: Any, tables: Tables) -> Group:
    """The inverse of `encode_group`.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    if not isinstance(said, list) or len(said) != 8:
        raise ValueError("not a group")
    name, desc, epoch, backend, size, listed, place, runs = said
    if [*map(type, (name, desc, epoch, backend, listed))] != [str, str, int, str, bool]:
        raise ValueError("not a group")
    if any(type(one) not in (int, type(None)) for one in (size, place)):
        raise ValueError("not a group")
    return Group(
        clean.name(name),
        clean.name(desc),
        tables.ranks_of(decode_runs(runs)),
        epoch,
        clean.name(backend),
        size,
        listed,
        place,
    )


def decode_runs(said: Any) -> tuple[tuple[int, int, int], ...]:
    """Runs as written by `runs_of`.

    Raises
    ------
    ValueError
        If they hold anything but ranks, or more than a job has.
    """
    if not isinstance(said, list) or len(said) > MAX_RANK:
        raise ValueError("not ranks")
    runs, total = [], 0
    for run in said:
        if not isinstance(run, list) or [*map(type, run)] != [int, int, int]:
            raise ValueError("not ranks")
        start, step, count = run
        last = start + step * (count - 1)
        total += count
        if count < 1 or total > MAX_RANK + 1 or not 0 <= min(start, last) <= max(start, last):
            raise ValueError("not ranks")
        if max(start, last) > MAX_RANK:
            raise ValueError("no job has such ranks")
        runs.append((start, step, count))
    return tuple(runs)


def encode_signatures(signatures: Iterable[Signature]) -> list[dict[str, Any]]:
    """Signatures as builtins."""
    return [Encoder().facts(signature) for signature in signatures]


def decode_signature(said: Any) -> Signature:
    """A signature; raises ValueError if it is none."""
    return Decoder(strict=True).facts(Signature, said)


def _run(start: int, step: int, count: int) -> Iterable[int]:
    return [start] * count if step == 0 else range(start, start + step * count, step)
