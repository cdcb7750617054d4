"""Batches of sends and receives of which only a log tells: it names the group and no partner."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.trace.model import Flag, Trace

_ONLY_LOGGED = int(Flag.P2P | Flag.COALESCED_BATCH | Flag.SYNTHETIC)


def unnamed_batches(
    trace: Trace, front: Frontiers, waiting: Collection[int], places: Sequence[Place]
) -> list[Place]:
    """A place for each overdue batch; ``waiting`` are ranks that wait for anything else.

    Where members of the group wait in something else, it is for one of them as a rule: who waits
    for nothing has mostly done its part. Where all others wait in such batches too, the only one
    that has spoken and waits for nothing is who it is; several are too many to tell. So are those
    that wait for the rank themselves, at one of the other ``places``: any of them may have left its
    half out, or the rank have begun one too many.
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
    """Per rank those that wait for it in a collective."""
    found: dict[int, set[int]] = {}
    for place in places:
        for rank in () if place.p2p else ranks & {*place.absent, *place.unknown}:
            found.setdefault(rank, set()).update(place.waiters)
    return found


@dataclass(frozen=True, slots=True)
class _Beside:
    """Who else is in the group of a batch: ranks that wait for nothing, that are not heard of, and
    that wait in something else."""

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
