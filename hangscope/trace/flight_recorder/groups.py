"""Groups of a Flight Recorder dump: names, members, and which counters belong to each.

``pg_config`` is keyed by group name, ``pg_status`` by a rank-local number that is not the name.
Entries carry both and settle most cases. For groups without an entry, the numeric order of both
keys decides, a heuristic that held on every real dump it was tried on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hangscope.trace import clean
from hangscope.trace.model import MAX_RANK, NONE, Group

MAX_GROUP_RANKS = 1 << 20
MAX_GROUPS = 1 << 16
_KEPT_LISTS = 256
_KEPT_TEXT = 1 << 20

_NUMBER = re.compile(r"[0-9]+")
_LIST = re.compile(r"[\[(]?[\d\s,]*[\])]?")
"""A range is none: members that are left out would seem not to belong to the group."""


@dataclass(slots=True)
class GroupTable:
    """The groups of one dump while it is being read; `index` is keyed by (name, pg_id or None)."""

    groups: list[Group]
    by_name: dict[str, int]
    by_pg_id: dict[str, int]

    def add(self, name: str, desc: str = "", ranks: tuple[int, ...] = (), epoch: int = 0) -> int:
        """Append a group and return its index."""
        self.groups.append(Group(name=name, desc=desc, ranks=ranks, epoch=epoch))
        index = len(self.groups) - 1
        self.by_name[name] = index
        return index


def parse_ranks(value: Any) -> tuple[int, ...]:
    """Global ranks from ``"[0, 1]"``, a list or tuple of numbers or strings; empty if unusable."""
    if isinstance(value, str):
        # Cached: all dumps of a job list the same members, perhaps ten thousand in each.
        return (_ranks_of_text if len(value) <= _KEPT_TEXT else _read_text)(value)
    if isinstance(value, (list, tuple)):
        return _one_object(_checked(list(value[:MAX_GROUP_RANKS])))
    return ()


def _read_text(value: str) -> tuple[int, ...]:
    found = _NUMBER.findall(value[: 12 * MAX_GROUP_RANKS]) if _LIST.fullmatch(value) else ()
    if found and max(map(len, found)) > 18:
        return ()
    return _checked(list(map(int, found)))


_ranks_of_text = functools.lru_cache(_KEPT_LISTS)(_read_text)


@functools.lru_cache(_KEPT_LISTS)
def _one_object(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The list, as the same object for all dumps that have it."""
    return ranks


def _checked(items: list[Any]) -> tuple[int, ...]:
    """The items as ranks; empty if one is not a valid rank or appears twice."""
    if set(map(type, items)) <= {int}:
        ranks = items
    else:
        ranks = [clean.as_int(item, -1, low=0, high=MAX_RANK) for item in items]
    if not ranks or min(ranks) < 0 or max(ranks) > MAX_RANK or len(set(ranks)) != len(ranks):
        return ()
    return tuple(ranks)


def has_rank(ranks: tuple[int, ...], rank: int) -> bool:
    """Whether a group has a rank; does not scan the list of the default group."""
    return (0 <= rank < len(ranks) and ranks[rank] == rank) or rank in ranks


def read_config(config: Any, rank: int, unlisted: Collection[str] = ()) -> GroupTable:
    """The groups of ``pg_config``.

    A member list without the rank itself is unusable (native Gloo writes the last group's list, or
    none at all). It is dropped, and the members stay unknown, as do those of the groups in
    ``unlisted``.
    """
    table = GroupTable([], {}, {})
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if not isinstance(value, Mapping):
            continue
        name = clean.as_name(value.get("name", key), clean.as_name(key))
        desc = clean.as_name(value.get("desc", ""))
        ranks = parse_ranks(value.get("ranks", ()))
        if name in unlisted or (rank != NONE and ranks and not has_rank(ranks, rank)):
            ranks = ()
        if not name and not ranks:
            continue
        if name in table.by_name or len(table.groups) >= MAX_GROUPS:
            continue
        table.add(name, desc, ranks)
    return table


def match_status(status_keys: list[str], table: GroupTable) -> dict[str, int]:
    """Group index per ``pg_status`` key.

    Keys settled by entries (``table.by_pg_id``) are used directly; the others are matched by the
    numeric order of both keys, provided that this order agrees with everything already settled.
    """
    known = {key: table.by_pg_id[key] for key in status_keys if key in table.by_pg_id}
    names = [group.name for group in table.groups]
    if len(known) == len(status_keys):
        return known
    open_keys = [key for key in status_keys if key not in known]
    taken = set(known.values())
    open_groups = [i for i in range(len(names)) if i not in taken]
    if len(open_keys) == 1 and len(open_groups) == 1:
        return {**known, open_keys[0]: open_groups[0]}
    if not all(key.isdigit() for key in status_keys):
        # Some collectors use the group names as keys.
        for key in open_keys:
            if key in table.by_name:
                known[key] = table.by_name[key]
        return known
    number = {
        i: made for i, group in enumerate(table.groups) if (made := _creation_number(group)) >= 0
    }
    ordered = sorted(number, key=lambda i: number[i])
    # A group whose name is not a number has no place in the order.
    keys = [k for k in sorted(status_keys, key=int) if k not in known or known[k] in number]
    return {**known, **_by_order(keys, ordered, known)}


def _creation_number(group: Group) -> int:
    """The position in which the job created a group, by its name; -1 if unknown. The default is
    first.
    """
    if group.desc == "default_pg" or group.name in ("default_pg", "default"):
        return 0
    return int(group.name) if group.name.isdigit() else NONE


def _by_order(keys: list[str], ordered: list[int], known: Mapping[str, int]) -> dict[str, int]:
    """Pair keys with groups between settled pairs wherever equally many lie on both sides."""
    place = {group: i for i, group in enumerate(ordered)}
    anchors = [(-1, -1)]
    for i, key in enumerate(keys):
        if key in known and known[key] in place:
            j = place[known[key]]
            if j < anchors[-1][1]:  # the heuristic does not hold in this dump
                return {}
            anchors.append((i, j))
    anchors.append((len(keys), len(ordered)))
    found: dict[str, int] = {}
    for (i0, j0), (i1, j1) in pairwise(anchors):
        if i1 - i0 == j1 - j0:
            for step in range(1, i1 - i0):
                found[keys[i0 + step]] = ordered[j0 + step]
    return found
