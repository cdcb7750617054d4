"""Whose dump it is: the number in its name, unless the dump itself contradicts it.

No recorder writes the rank into a dump. The number in a file's name or in a collector's key may be
a date, a process id, or the rank within a host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hangscope.trace import clean, operations
from hangscope.trace.files.sniff import Unreadable
from hangscope.trace.flight_recorder.columns import Entries
from hangscope.trace.flight_recorder.groups import has_rank, read_config
from hangscope.trace.model import MAX_RANK, NONE, Group

_ENOUGH_ENTRIES = 20_000

_Lists = Mapping[str, tuple[int, ...]]
"""The members of each group that a dump lists."""


def rank_of(entries: Entries, config: Any, named: int | None) -> int:
    """The rank of a dump; ``named`` is the number in its name.

    A rank issues nothing in a group without it. If the dump shows that of the number in its name,
    although it lists that number elsewhere, the number is none of these ranks: it counts within a
    host or a replica. The rank is then the one that is in all groups that the dump has used.

    Raises
    ------
    Unreadable
        If neither the name nor the contents tell the rank.
    """
    groups = read_config(config, NONE).groups
    lists = {g.name: g.ranks for g in groups if g.ranks}
    if named is not None and named <= MAX_RANK and _may_be_rank(named, groups):
        common = _users_of_foreign_groups(entries, lists, named)
        if not common:
            return named
        rank = next(iter(common)) if len(common) == 1 else _rank_from_pairs(entries, lists)
        if rank is None:
            raise Unreadable(
                f"cannot tell whose dump it is: it uses groups without rank {named}; put the rank "
                "at the end of its name"
            )
        return rank
    # The number in the name is not the rank: it may be a date, a pid or a local rank.
    rank = _rank_from_pairs(entries, lists)
    if rank is None:
        raise Unreadable("cannot tell whose dump it is; put the rank at the end of its name")
    return rank


def _may_be_rank(rank: int, groups: Iterable[Group]) -> bool:
    """Whether the number can be a rank, given the default group's members.

    Fault-tolerant jobs number the default group's ranks separately in each replica. A rank outside
    the list is therefore possible, but a number a hundred times its length is not.
    """
    for group in groups:
        if group.desc == "default_pg" and group.ranks and not has_rank(group.ranks, rank):
            return rank < 100 * len(group.ranks)
    return True


def _users_of_foreign_groups(entries: Entries, lists: _Lists, named: int) -> frozenset[int]:
    """The ranks that can have issued these entries if ``named`` cannot; empty if it can.

    It is also empty if nobody can have issued them all: then the lists are wrong.
    """
    foreign = {name for name, ranks in lists.items() if not has_rank(ranks, named)}
    if not foreign or len(foreign) == len(lists):
        return frozenset()
    used = lists.keys() & {_group_name(entry) for entry in entries}
    if not used & foreign:
        return frozenset()
    return frozenset.intersection(*(frozenset(lists[name]) for name in used))


def _group_name(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group")
    return clean.as_name(group[0]) if isinstance(group, (list, tuple)) and group else ""


def _rank_from_pairs(entries: Entries, lists: _Lists) -> int | None:
    """The rank, if a send or receive states its place in a group with known members."""
    for entry in entries[:_ENOUGH_ENTRIES]:
        name = entry.get("profiling_name")
        if not isinstance(name, str):
            continue
        parsed = operations.parse(name)
        own = parsed.src if parsed.op == "send" else parsed.dst if parsed.op == "recv" else NONE
        ranks = lists.get(_group_name(entry), ())
        if 0 <= own < len(ranks):
            return ranks[own]
    return None
