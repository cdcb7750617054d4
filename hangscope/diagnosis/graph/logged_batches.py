"""Batches of sends and receives known only from a log, which gives their group but no peer."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.trace.model import Flag, Trace

_ONLY_LOGGED = int(Flag.P2P | Flag.COALESCED_BATCH | Flag.SYNTHETIC)


def logged_batches(
    trace: Trace, front: Frontiers, waiting: Collection[int], places: Sequence[Place]
) -> list[Place]:
    """A place for each overdue batch; ``waiting``: ranks that wait for anything else.

    If other members of the group wait in something else, the batch usually waits for one of those:
    a rank that waits for nothing has most likely done its part. If all other members wait in such
    batches too, the batch waits for the only rank that was heard from and waits for nothing. With
    several of those, or with members that wait for the batch's own rank (at one of the other
    ``places``), it stays open: any of them may have skipped its half, or the rank started one batch
    too many.
    """
    records = trace.records
    rows = np.flatnonzero(((records["flags"] & _ONLY_LOGGED) == _ONLY_LOGGED) & front.unfinished)
    inside: dict[int, set[int]] = {}
    for row in rows.tolist():
        inside.setdefault(int(records["group"][row]), set()).add(int(records["rank"][row]))
    busy = {*waiting, *records["rank"][rows].tolist()}
    others = {group: _beside(trace, group, ranks, busy) for group, ranks in inside.items()}
    behind = _behind(places, frozenset().union(*inside.values()))
    found = []
    for row in rows.tolist():
        record = records[row]
        rank, group = int(record["rank"]), int(record["group"])
        beside = others[group]
        elsewhere = tuple(r for r in beside.elsewhere if r not in behind.get(rank, ()))
        is_behind = bool(elsewhere) and not beside.lost
        is_absent = not is_behind and len(beside.idle) == 1 and not beside.lost
        perhaps = () if is_behind or is_absent else (*beside.idle, *beside.lost)
        found.append(
            Place(
                group,
                int(record["p2p_seq"]),
                (rank,),
                behind=elsewhere if is_behind else (),
                absent=tuple(beside.idle) if is_absent else (),
                unknown=perhaps,
                row=row,
                p2p=True,
                began_ns=int(record["created_ns"]),
                members=beside.members or (rank,),
                blind=not (is_behind or is_absent or perhaps),
            )
        )
    return found


def _behind(places: Sequence[Place], ranks: Set[int]) -> dict[int, set[int]]:
    """Per rank, the ranks that wait for it in a collective."""
    found: dict[int, set[int]] = {}
    for place in places:
        for rank in () if place.p2p else ranks & {*place.absent, *place.unknown}:
            found.setdefault(rank, set()).update(place.waiters)
    return found


@dataclass(frozen=True, slots=True)
class _Beside:
    """The other members of a batch's group: idle ranks, ranks not heard from, and ranks that wait
    in something else."""

    members: tuple[int, ...]
    idle: tuple[int, ...]
    lost: tuple[int, ...]
    elsewhere: tuple[int, ...]


def _beside(trace: Trace, group: int, inside: Set[int], busy: Set[int]) -> _Beside:
    members = trace.groups[group].ranks
    return _Beside(
        members,
        tuple(r for r in members if r in trace.ranks and r not in busy),
        tuple(r for r in members if r not in trace.ranks),
        tuple(r for r in members if r in busy and r not in inside),
    )
