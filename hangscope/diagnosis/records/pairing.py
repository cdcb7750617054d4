"""Sends and receives: which pending halves have a partner, and which wait for one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from hangscope.diagnosis.records.alignment import Side, shift
from hangscope.diagnosis.records.coverage import recorded_ranks
from hangscope.diagnosis.records.frontier import Bools, Frontiers, Ints
from hangscope.diagnosis.records.kinds import is_on_host, is_sending, records_where
from hangscope.trace.model import NONE, Flag, Trace, flagged


@dataclass(frozen=True, slots=True)
class Half:
    """An unfinished send or receive. ``matched``: the partner issued the other half; None:
    unknown."""

    rank: int
    peer: int
    group: int
    row: int
    is_send: bool
    matched: bool | None
    partner_row: int = NONE


@dataclass(frozen=True, slots=True)
class _Table:
    """All halves of a trace, finished or not, as columns in record order."""

    row: Ints
    rank: Ints
    peer: Ints
    """Negative: any source."""
    group: Ints
    is_send: Bools
    batched: Bools
    """Member of a batch."""
    inferred: Bools
    """Inferred by a reader from a log."""
    tag: Ints
    """-1 where tags do not count."""
    side: Side


@dataclass(frozen=True, slots=True)
class _Known:
    """What the records reveal about halves that are not among them."""

    ranks: Set[int]
    """Ranks with any record."""
    hidden: Set[int]
    """Ranks whose early records are gone."""
    from_first: Set[tuple[int, int]]
    """(rank, group) of hidden ranks that nevertheless have all their halves there."""
    anybody: Mapping[tuple[int, int], list[int]]
    """(rank, group) that receives from any source -> rows of those receives still waiting."""


def pending_halves(trace: Trace, front: Frontiers, hidden: frozenset[int]) -> list[Half]:
    """Every unfinished half.

    ``hidden`` are ranks whose early records are gone (wrapped, or only active entries listed):
    their halves are paired from the newest end, because the older ones finished in pairs.
    """
    table = _halves_of(trace, front)
    unfinished = table.side.unfinished
    if not unfinished.any():
        return []
    lacks_none = _from_their_first(trace, table.row, hidden)
    known = _Known(recorded_ranks(trace), hidden, lacks_none, _from_anybody(table))
    halves: list[Half] = []
    for part in _channels(table):
        alike = _by_tag(table.tag, part)
        found = [half for same in alike for half in _channel(table, known, same)]
        halves += found if len(alike) == 1 else _across_tags(trace, found)
    for i in np.flatnonzero(unfinished & (table.peer < 0)).tolist():
        rank, group, row = int(table.rank[i]), int(table.group[i]), int(table.row[i])
        halves.append(Half(rank, NONE, group, row, False, None))
    return halves


def _halves_of(trace: Trace, front: Frontiers) -> _Table:
    records = trace.records
    batch = flagged(records["flags"], Flag.COALESCED_BATCH)
    rows = np.flatnonzero(front.p2p & ~batch)  # a batch's own row names no partner
    flags, group = records["flags"][rows], records["group"][rows].astype(np.int64)
    rank = records["rank"][rows].astype(np.int64)
    batch_row = front.batch_row[rows]
    inside = batch_row >= 0
    unfinished = front.unfinished[rows]
    unfinished[inside] &= front.unfinished[batch_row[inside]]
    ended = records["completed_ns"][rows].astype(np.int64)  # a batched half ends with its batch
    ended[inside] = records["completed_ns"][batch_row[inside]]
    return _Table(
        row=rows,
        rank=rank,
        peer=_with_only_partner(trace, group, rank, records["peer"][rows]),
        group=group,
        is_send=records_where(trace, is_sending, rows),
        batched=flagged(flags, Flag.COALESCED_MEMBER),
        inferred=flagged(flags, Flag.SYNTHETIC),
        tag=_tags(trace, rows),
        side=Side(records["p2p_seq"][rows], records["created_ns"][rows], ended, unfinished),
    )


def _channels(table: _Table) -> list[Ints]:
    """The halves of every channel with an unfinished one, oldest first.

    A channel is what one rank sends to another in a group, with what the other receives of it.
    """
    span = int(max(table.rank.max(), table.peer.max())) + 2
    source = np.where(table.is_send, table.rank, table.peer) + 1
    target = np.where(table.is_send, table.peer, table.rank) + 1
    channel = (table.group * span + source) * span + target
    concerned = np.unique(channel[table.side.unfinished & (table.peer >= 0)])
    order = np.flatnonzero(np.isin(channel, concerned))
    order = order[np.argsort(channel[order], kind="stable")]
    if not len(order):
        return []
    return np.split(order, np.flatnonzero(np.diff(channel[order])) + 1)


def _from_their_first(
    trace: Trace, rows: Ints, hidden: frozenset[int]
) -> frozenset[tuple[int, int]]:
    """(rank, group) of ``hidden`` ranks whose sends and receives are recorded from the first on.

    Only unfinished entries were listed there, and the recorder's numbers have no gap: every half of
    a batch stays listed, finished or not.
    """
    listed = [r for r in hidden if r in trace.ranks and trace.ranks[r].only_active]
    rows = rows[np.isin(trace.records["rank"][rows], listed)]
    if not len(rows):
        return frozenset()
    names = ("rank", "group", "p2p_seq")
    table = np.unique(np.stack([trace.records[name][rows] for name in names]), axis=1)
    starts = np.flatnonzero(np.append(True, (table[:2, 1:] != table[:2, :-1]).any(axis=0)))
    ends = np.append(starts[1:], table.shape[1])
    whole = (table[2, starts] == 1) & (table[2, ends - 1] == ends - starts)
    return frozenset(zip(*table[:2, starts[whole]].tolist(), strict=True))


def _from_anybody(table: _Table) -> dict[tuple[int, int], list[int]]:
    """(rank, group) that receives from any source -> rows of its unfinished receives."""
    found: dict[tuple[int, int], list[int]] = {}
    for i in np.flatnonzero((table.peer < 0) & ~table.is_send).tolist():
        waiting = found.setdefault((int(table.rank[i]), int(table.group[i])), [])
        if table.side.unfinished[i]:
            waiting.append(int(table.row[i]))
    return found


def _with_only_partner(trace: Trace, group: Ints, rank: Ints, peer: Ints) -> Ints:
    """The peers; in a group of two, an unrecorded peer is the other member."""
    peer = peer.astype(np.int64)
    for i in np.flatnonzero(peer < 0).tolist():
        members = trace.groups[int(group[i])].ranks
        if len(members) == 2 and int(rank[i]) in members:
            peer[i] = members[0] if members[1] == rank[i] else members[1]
    return peer


def tags_count(trace: Trace, *rows: int) -> bool:
    """Whether halves only match under the same tag and tags are recorded. Devices ignore tags."""
    records = trace.records
    return all(
        int(records["root"][row]) >= 0
        and is_on_host(trace.signatures[int(records["signature"][row])])
        for row in rows
    )


def _tags(trace: Trace, rows: Ints) -> Ints:
    """The tag of each half, -1 where tags do not count."""
    tags = trace.records["root"][rows].astype(np.int64)
    found: Ints = np.where(records_where(trace, is_on_host, rows), tags, NONE)
    return found


def _by_tag(tag: Ints, part: Ints) -> list[Ints]:
    """The halves of one channel, split by tag."""
    tags = tag[part]
    if (tags < 0).any():
        return [part]
    return [part[tags == value] for value in np.unique(tags)]


def _across_tags(trace: Trace, halves: list[Half]) -> list[Half]:
    """Halves of one channel; those that the two sides wait for under different tags become
    partners.

    They were meant for each other: neither side can issue anything else before they match.
    """
    waited = int(Flag.BLOCKING | Flag.WAITED | Flag.COALESCED_MEMBER)
    lone = [h for h in halves if h.matched is False and int(trace.records["flags"][h.row]) & waited]
    sends = [h for h in lone if h.is_send]
    met: dict[int, int] = {}
    for send, recv in zip(sends, [h for h in lone if not h.is_send], strict=False):
        met[send.row], met[recv.row] = recv.row, send.row
    return [replace(h, matched=True, partner_row=met[h.row]) if h.row in met else h for h in halves]


def _channel(table: _Table, known: _Known, part: Ints) -> list[Half]:
    """The unfinished halves of one channel, each with its other half."""
    a, b, group = (int(column[part[0]]) for column in (table.rank, table.peer, table.group))
    inferred = bool(table.inferred[part].any())
    # A receive from any source takes sends that are then missing here: counting would be off.
    taken = (a, group) in known.anybody or (b, group) in known.anybody
    lacking = any(r in known.hidden and (r, group) not in known.from_first for r in (a, b))
    partial = lacking or inferred or taken
    aligned = lacking and not inferred and not taken and bool(table.batched[part].any())
    sending, receiving = part[table.is_send[part]], part[~table.is_send[part]]
    halves = []
    for mine, others in ((sending, receiving), (receiving, sending)):
        waiting = mine[table.side.unfinished[mine]]
        by_newest = partial and not (aligned and len(mine) and len(others))
        if by_newest:
            others = others[table.side.unfinished[others]]
            places = _from_newest(table, waiting, others)
        elif partial:
            by = shift(table.side.at(mine), table.side.at(others))
            places = np.searchsorted(mine, waiting) + (len(others) - len(mine) + by)
        else:
            places = np.arange(len(mine) - len(waiting), len(mine))
        for i, place in zip(waiting.tolist(), places.tolist(), strict=True):
            peer, is_send = int(table.peer[i]), bool(table.is_send[i])
            matched: bool | None = place < len(others)
            partner = int(table.row[others[place]]) if 0 <= place < len(others) else NONE
            if not {b, peer} <= known.ranks:
                matched, partner = None, NONE
            elif by_newest and not len(others) and peer in known.hidden:
                matched = None
            if not matched and is_send and (taker := known.anybody.get((peer, group))):
                matched, partner = True, taker[0]
            halves.append(
                Half(int(table.rank[i]), peer, group, int(table.row[i]), is_send, matched, partner)
            )
    return halves


def _from_newest(table: _Table, waiting: Ints, others: Ints) -> Ints:
    """Indices in ``others`` of the other halves, where both sides list unfinished halves.

    Batched exchanges are usually symmetric. A half whose batch waits for another half may have been
    served long ago, so counting from the oldest unfinished one would be off: match equal numbers
    instead. An index past the end: no other half.
    """
    numbered: dict[int, int] = {}
    for place, seq in enumerate(table.side.seq[others].tolist()):
        numbered.setdefault(seq, place)
    places = [
        numbered.get(int(table.side.seq[i]), len(others)) if table.batched[i] else k
        for k, i in enumerate(waiting.tolist())
    ]
    return np.array(places, np.int64)


@dataclass(frozen=True, slots=True)
class MissingSenders:
    """``behind`` have sent less often than others, ``lost`` left nothing; both may be empty."""

    behind: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


def missing_senders(
    trace: Trace,
    half: Half,
    bounds: Mapping[int, tuple[int, int]],
    recorded: Collection[int],
    hidden: Collection[int],
) -> MissingSenders:
    """The ranks that owe the send a receive from any source waits for.

    If the start of their records is gone, senders that serve only this receiver are compared by the
    p2p counter in every entry.
    """
    members = [r for r in trace.groups[half.group].ranks if r != half.rank]
    lost = tuple(r for r in members if r not in trace.ranks)
    counts: dict[int, int] = {}
    for rank in members:
        if rank in recorded:
            count = _sent(trace, rank, half, bounds.get(rank, (0, 0)), rank in hidden)
            if count is not None:
                counts[rank] = count
    most = max(counts.values(), default=0)
    behind = tuple(sorted(r for r, count in counts.items() if count < most))
    return MissingSenders(behind, lost)


def _sent(trace: Trace, rank: int, half: Half, bounds: tuple[int, int], hidden: bool) -> int | None:
    """Number of sends a rank has issued to the receiver; None if unknown."""
    part = trace.records[bounds[0] : bounds[1]]
    pairs = part[(part["group"] == half.group) & (part["peer"] >= 0)]
    own = pairs[pairs["peer"] == half.rank]
    if not hidden:
        sends = np.array([s.op == "send" for s in trace.signatures] or [False], bool)
        return int(sends[own["signature"]].sum())
    if len(own) != len(pairs):
        return None
    if trace.ranks[rank].only_active:
        own = part[part["group"] == half.group]  # finished sends are not listed, but counted
    return int(own["p2p_seq"].max()) if len(own) else None


_WAITED = int(Flag.BLOCKING | Flag.WAITED)
_DROPPED = int(Flag.ASYNC | Flag.UNOBSERVED)


def waits_for_dropped_half(trace: Trace, half: Half) -> bool:
    """Whether an unfinished half is waited for, and its other half was dropped."""
    if half.partner_row == NONE:
        return False
    flags = trace.records["flags"]
    own, other = int(flags[half.row]), int(flags[half.partner_row])
    return (
        own & _WAITED != 0
        and not own & int(Flag.COALESCED_MEMBER)
        and other & (_DROPPED | _WAITED) == _DROPPED
        and is_on_host(trace.signatures[int(trace.records["signature"][half.row])])
    )
