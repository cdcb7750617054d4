"""Makes one group of the sides of a communicator, each of which one process told of itself.

The sides may have been told on several nodes. If any member is unknown, so is what it has issued: a
side then counts only where its own device shows that it waits, for whomever.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import NONE, Flag, Records, State, Trace, flagged
from hangscope.trace.nccl.progress import mark_observed

Ints = npt.NDArray[np.int64]


class _Side(NamedTuple):
    member: int
    """Its rank in the communicator."""
    rank: int
    group: int
    """Index into `Trace.groups`."""


def joined_communicators(trace: Trace) -> Trace:
    """The trace in which each communicator whose members are all known is one group."""
    sides: dict[tuple[str, int | None], list[_Side]] = defaultdict(list)
    for index, group in enumerate(trace.groups):
        if group.is_side and group.place is not None:
            sides[group.name, group.size].append(_Side(group.place, group.ranks[0], index))
    whole = [sorted(own) for (_, size), own in sides.items() if _are_all(own, size)]
    if not whole:
        return trace
    first = {own[0].group: own for own in whole}
    gone = {side.group: own[0].group for own in whole for side in own[1:]}
    kept = [index for index in range(len(trace.groups)) if index not in gone]
    new = {old: number for number, old in enumerate(kept)}
    numbers = [new[gone.get(index, index)] for index in range(len(trace.groups))]
    table = np.array([*numbers, NONE], np.int32)
    records, members = trace.records.copy(), trace.members.copy()
    records["group"], members["group"] = table[records["group"]], table[members["group"]]
    groups = [trace.groups[index] for index in kept]
    for index, own in first.items():
        ranks = tuple(side.rank for side in own)
        groups[new[index]] = replace(trace.groups[index], ranks=ranks, place=None)
        _settle(records, members, new[index], ranks)
    claims = tuple(replace(claim, group=int(table[claim.group])) for claim in trace.claims)
    return replace(trace, records=records, members=members, groups=tuple(groups), claims=claims)


def without_sides(trace: Trace) -> Trace:
    """The trace without what was told of communicators some of whose members are unknown, except
    where a device waits."""
    sides = {index for index, group in enumerate(trace.groups) if group.is_side}
    if not sides:
        return trace
    waits = trace.records["state"] != int(State.COMPLETED)
    waits &= ~flagged(trace.records["flags"], Flag.UNOBSERVED)
    partial = sorted(sides.difference(trace.records["group"][waits].tolist()))
    if not partial:
        return trace
    return replace(
        trace,
        records=trace.records[~np.isin(trace.records["group"], partial)],
        members=trace.members[~np.isin(trace.members["group"], partial)],
    )


def _are_all(sides: list[_Side], size: int | None) -> bool:
    """Whether each member is known exactly once."""
    return len(sides) == size and {s.member for s in sides} == set(range(len(sides)))


def _settle(records: Records, members: Records, group: int, ranks: tuple[int, ...]) -> None:
    """Enter, in place, what only all members together show.

    Roots and peers become global ranks. What needs all members, and some have not issued, has not
    ended on any.
    """
    here = np.flatnonzero(records["group"] == group)
    rows = records[here]
    for name in ("root", "peer"):
        rows[name] = _global(rows[name], ranks)
    least = members["enqueued"][members["group"] == group].min(initial=np.iinfo(np.int64).max)
    pair = flagged(rows["flags"], Flag.P2P)
    early = ~pair & (rows["root"] == NONE) & (rows["collective_seq"] > least)
    rows["state"][early] = np.minimum(rows["state"][early], int(State.STARTED))
    rows["completed_ns"][early] = 0
    mark_observed(rows, early)
    records[here] = rows


def _global(places: npt.NDArray[np.int32], ranks: tuple[int, ...]) -> Ints:
    known = (places >= 0) & (places < len(ranks))
    table = np.array([*ranks, NONE], np.int64)
    return table[np.where(known, places, len(ranks))]
