"""Brings a trace together with what NCCL told in each rank's process."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hangscope.ring.device_reader import DeviceRing
from hangscope.trace.facts import RankFacts
from hangscope.trace.model import NCCL_GROUP, NONE, Flag, Group, Records, State, Trace, flagged
from hangscope.trace.nccl.communicators import joined_communicators
from hangscope.trace.nccl.matching import Tables, records_of_operations
from hangscope.trace.nccl.own_records import OwnTables, own_side, tables_of
from hangscope.trace.nccl.progress import majority, mark_observed, with_progress
from hangscope.trace.nccl.proxies import proxy_waits

Ints = npt.NDArray[np.int64]

GRAPH = "CUDA graph replay"
"""How a ring says that a graph's replay leaves no record."""
_TELLS_REPLAYS = 5
"""From this version of the interface on, NCCL tells what a graph has captured."""


@dataclass(slots=True)
class _Found:
    """What the ranks' device rings told, gathered rank by rank."""

    sides: dict[int, list[tuple[int, DeviceRing, int, Ints]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    votes: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Per communicator's hash, in which groups its recorded operations are."""


def with_device_events(trace: Trace, told: Mapping[int, DeviceRing | None]) -> Trace:
    """The trace with the devices' progress, and with records of what NCCL alone told.

    Parameters
    ----------
    trace:
        Of a job, live or past; its tables are not changed.
    told:
        Per rank what NCCL told in its process, if it did.
    """
    rings = {rank: ring for rank, ring in told.items() if ring and len(ring.communicators)}
    if not rings:
        return trace
    records = trace.records.copy()
    tables = Tables.of(trace.signatures, trace.groups)
    found = _Found()
    for rank, ring in rings.items():
        low, high = np.searchsorted(records["rank"], [rank, rank + 1])
        part = records[low:high]
        rows = records_of_operations(part, tables, ring)
        with_progress(part, rows, ring)
        if GRAPH in trace.ranks[rank].unobservable and ring.interface >= _TELLS_REPLAYS:
            end_captured(part, rows, tables)
        _gather(found, rank, ring, part["group"], rows)
    known = {
        hash_: trace.groups[group]
        for hash_, votes in found.votes.items()
        if (group := votes.most_common(1)[0][0]) < len(trace.groups)
    }
    own = tables_of(
        [
            own_side(rank, ring, index, rows, known[hash_].label if hash_ in known else None)
            for hash_, sides in found.sides.items()
            for rank, ring, index, rows in sides
        ]
    )
    trace = joined_communicators(_joined(replace(trace, records=records), own))
    ranks = _with_proxies(
        _without_replays(trace.ranks, rings), rings, _members(trace, known, found.sides)
    )
    return replace(trace, ranks=ranks)


def end_captured(records: Records, rows: Ints, tables: Tables) -> None:
    """Mark as over, in place, what a graph has captured: it never runs by itself.

    That is what NCCL was given nothing to do for, though the group has its communicator.

    Parameters
    ----------
    records:
        Of one rank that captures graphs.
    rows:
        Per operation of its device ring the index of its record, or -1.
    """
    given = np.zeros(len(records), bool)
    given[rows[rows >= 0]] = True
    there = np.isin(records["group"], records["group"][given])
    calls = tables.called[records["signature"]] != 0
    unseen = flagged(records["flags"], Flag.UNOBSERVED) & (records["state"] != State.COMPLETED)
    captured = ~given & there & calls & unseen
    captured &= ~flagged(records["flags"], Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH)
    for name in ("started_ns", "completed_ns"):
        records[name][captured] = records["created_ns"][captured]
    records["state"][captured] = State.COMPLETED
    mark_observed(records, captured)


def _gather(found: _Found, rank: int, ring: DeviceRing, groups: Ints, rows: Ints) -> None:
    for index, communicator in enumerate(ring.communicators):
        if not communicator["commit"] or communicator["ranks"] < 1:
            continue
        hash_ = int(communicator["hash"])
        matched = rows[(ring.operations["communicator"] == index + 1) & (rows >= 0)]
        group = majority(groups[matched])
        if group != NONE:
            found.votes[hash_][group] += len(matched)
        found.sides[hash_].append((rank, ring, index, rows))


def _joined(trace: Trace, own: OwnTables) -> Trace:
    """The trace with further groups; each rank's records stay in the order of issue."""
    if not own.groups:
        return trace
    more, members = own.records.copy(), own.members.copy()
    more["group"] += len(trace.groups)
    members["group"] += len(trace.groups)
    more["signature"] += len(trace.signatures)
    joined = np.concatenate([trace.records, more])
    order = np.lexsort((_issue_times(trace.records, more), joined["rank"]))
    return replace(
        trace,
        records=joined[order],
        members=np.concatenate([trace.members, members]),
        groups=(*trace.groups, *own.groups),
        signatures=(*trace.signatures, *own.signatures),
    )


def _issue_times(records: Records, more: Records) -> Ints:
    """Times by which to sort: never decreasing among the recorded operations of a rank."""
    times = records["created_ns"].copy()
    ranks = records["rank"]
    starts = [0, *(np.flatnonzero(np.diff(ranks)) + 1).tolist(), len(ranks)]
    for low, high in itertools.pairwise(starts):
        np.maximum.accumulate(times[low:high], out=times[low:high])
    return np.concatenate([times, more["created_ns"]])


def _members(
    trace: Trace, known: Mapping[int, Group], hashes: Iterable[int]
) -> dict[int, Mapping[int, int]]:
    """Per hash of a communicator the global rank of each member, as far as known."""
    told: dict[str, dict[int, int]] = defaultdict(dict)
    for group in trace.groups:
        if group.name.startswith(NCCL_GROUP):
            places = range(len(group.ranks)) if group.place is None else (group.place,)
            told[group.name].update(zip(places, group.ranks, strict=False))
    return {
        hash_: dict(enumerate(known[hash_].ranks))
        if hash_ in known
        else told[f"{NCCL_GROUP}{hash_:x}"]
        for hash_ in hashes
    }


def _with_proxies(
    ranks: Mapping[int, RankFacts],
    rings: Mapping[int, DeviceRing],
    members: Mapping[int, Mapping[int, int]],
) -> dict[int, RankFacts]:
    """The ranks' facts with what their proxies wait for."""
    return {
        rank: replace(facts, proxies=waits)
        if rank in rings and (waits := proxy_waits(rings[rank], members))
        else facts
        for rank, facts in ranks.items()
    }


def _without_replays(
    ranks: Mapping[int, RankFacts], rings: Mapping[int, DeviceRing]
) -> dict[int, RankFacts]:
    """The ranks' facts; that replays leave no record is no longer so where NCCL tells of them."""
    return {
        rank: replace(facts, unobservable=tuple(t for t in facts.unobservable if t != GRAPH))
        if facts.unobservable and rank in rings and rings[rank].interface >= _TELLS_REPLAYS
        else facts
        for rank, facts in ranks.items()
    }
