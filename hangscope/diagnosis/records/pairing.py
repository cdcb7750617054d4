"""Sends and receives: which pending halves have a partner, and which wait for one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from hangscope.diagnosis.observability import recorded_ranks, unfinished_alone
from hangscope.diagnosis.records.alignment import Side, shift
from hangscope.diagnosis.records.frontier import Frontiers, Ints
from hangscope.diagnosis.records.kinds import is_on_host, is_sending, records_where
from hangscope.trace.model import NONE, Flag, State, Trace, flagged


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


class _Halves:
    """All halves of a trace, finished or not, as columns in record order, and what the records
    reveal about halves that are not among them.

    ``hidden``: ranks whose early records are gone.
    """

    def __init__(self, trace: Trace, front: Frontiers, hidden: Set[int]) -> None:
        records = trace.records
        batch = flagged(records["flags"], Flag.COALESCED_BATCH)
        self.trace, self.hidden, self.recorded = trace, hidden, recorded_ranks(trace)
        self.row = rows = np.flatnonzero(front.p2p & ~batch)  # a batch's own row names no partner
        self.rank = records["rank"][rows].astype(np.int64)
        self.group = records["group"][rows].astype(np.int64)
        self.peer = self._with_only_partner(records["peer"][rows].astype(np.int64))
        """Negative: any source."""
        self.is_send = records_where(trace, is_sending, rows)
        self.batched = flagged(records["flags"][rows], Flag.COALESCED_MEMBER)
        self.inferred = flagged(records["flags"][rows], Flag.SYNTHETIC)
        """Inferred by a reader from a log."""
        tags = records["root"][rows].astype(np.int64)
        self.tag = np.where(records_where(trace, is_on_host, rows), tags, NONE)
        """-1 where tags do not count: devices ignore them."""
        batch_row = front.batch_row[rows]
        inside = batch_row >= 0
        unfinished = front.unfinished[rows]
        unfinished[inside] &= front.unfinished[batch_row[inside]]
        ended = records["completed_ns"][rows].astype(np.int64)  # a batched half ends with its batch
        ended[inside] = records["completed_ns"][batch_row[inside]]
        self.side = Side(records["p2p_seq"][rows], records["created_ns"][rows], ended, unfinished)
        self.from_first = self._from_their_first()
        self.anybody: dict[tuple[int, int], list[int]] = {}
        """(rank, group) that receives from any source -> rows of those receives still waiting."""
        for i in np.flatnonzero((self.peer < 0) & ~self.is_send).tolist():
            waiting = self.anybody.setdefault((int(self.rank[i]), int(self.group[i])), [])
            waiting += [int(rows[i])] if unfinished[i] else []

    def _with_only_partner(self, peer: Ints) -> Ints:
        """The peers; in a group of two, an unrecorded peer is the other member."""
        for i in np.flatnonzero(peer < 0).tolist():
            members, rank = self.trace.groups[int(self.group[i])].ranks, int(self.rank[i])
            if len(members) == 2 and rank in members:
                peer[i] = members[0] if members[1] == rank else members[1]
        return peer

    def _from_their_first(self) -> frozenset[tuple[int, int]]:
        """(rank, group) of hidden ranks whose sends and receives are recorded from the first on.

        Only unfinished entries were listed there, and the recorder's numbers have no gap: every
        half of a batch stays listed, finished or not.
        """
        records = self.trace.records
        rows = self.row[np.isin(self.rank, sorted(unfinished_alone(self.trace) & self.hidden))]
        if not len(rows):
            return frozenset()
        names = ("rank", "group", "p2p_seq")
        table = np.unique(np.stack([records[name][rows] for name in names]), axis=1)
        starts = np.flatnonzero(np.append(True, (table[:2, 1:] != table[:2, :-1]).any(axis=0)))
        ends = np.append(starts[1:], table.shape[1])
        whole = (table[2, starts] == 1) & (table[2, ends - 1] == ends - starts)
        return frozenset(zip(*table[:2, starts[whole]].tolist(), strict=True))

    def channels(self) -> list[Ints]:
        """The halves of every channel with an unfinished one, oldest first.

        A channel is what one rank sends to another in a group, with what the other receives of it.
        """
        span = int(max(self.rank.max(), self.peer.max())) + 2
        source = np.where(self.is_send, self.rank, self.peer) + 1
        target = np.where(self.is_send, self.peer, self.rank) + 1
        channel = (self.group * span + source) * span + target
        concerned = np.unique(channel[self.side.unfinished & (self.peer >= 0)])
        order = np.flatnonzero(np.isin(channel, concerned))
        order = order[np.argsort(channel[order], kind="stable")]
        if not len(order):
            return []
        return np.split(order, np.flatnonzero(np.diff(channel[order])) + 1)

    def by_tag(self, part: Ints) -> list[Ints]:
        """The halves of one channel, split by tag."""
        tags = self.tag[part]
        if (tags < 0).any():
            return [part]
        return [part[tags == value] for value in np.unique(tags)]

    def unfinished_of(self, part: Ints) -> list[Half]:
        """The unfinished halves of one channel, each with its other half."""
        a, b, group = (int(column[part[0]]) for column in (self.rank, self.peer, self.group))
        inferred = bool(self.inferred[part].any())
        # A receive from any source takes sends that are then missing here: counting would be off.
        taken = (a, group) in self.anybody or (b, group) in self.anybody
        lacking = any(r in self.hidden and (r, group) not in self.from_first for r in (a, b))
        partial = lacking or inferred or taken
        aligned = lacking and not inferred and not taken and bool(self.batched[part].any())
        sending, receiving = part[self.is_send[part]], part[~self.is_send[part]]
        halves = []
        for mine, others in ((sending, receiving), (receiving, sending)):
            waiting = mine[self.side.unfinished[mine]]
            by_newest = partial and not (aligned and len(mine) and len(others))
            if by_newest:
                others = others[self.side.unfinished[others]]
                places = self._from_newest(waiting, others)
            elif partial:
                by = shift(self.side.at(mine), self.side.at(others))
                places = np.searchsorted(mine, waiting) + (len(others) - len(mine) + by)
            else:
                places = np.arange(len(mine) - len(waiting), len(mine))
            for i, place in zip(waiting.tolist(), places.tolist(), strict=True):
                peer, is_send = int(self.peer[i]), bool(self.is_send[i])
                matched: bool | None = place < len(others)
                partner = int(self.row[others[place]]) if 0 <= place < len(others) else NONE
                if not {b, peer} <= self.recorded:
                    matched, partner = None, NONE
                elif by_newest and not len(others) and peer in self.hidden:
                    matched = None
                if not matched and is_send and (taker := self.anybody.get((peer, group))):
                    matched, partner = True, taker[0]
                row = int(self.row[i])
                halves.append(Half(int(self.rank[i]), peer, group, row, is_send, matched, partner))
        return halves

    def unseen_of(self, part: Ints) -> list[Half]:
        """Halves of one channel without another half that nobody has waited for: whether they have
        finished is not recorded."""
        if not self.hidden.isdisjoint(np.unique(self.rank[part]).tolist()):
            return []
        sending, receiving = part[self.is_send[part]], part[~self.is_send[part]]
        more, fewer = sorted((sending, receiving), key=len, reverse=True)
        done = self.trace.records["state"][self.row] == int(State.COMPLETED)
        rank, peer, group = (int(column[part[0]]) for column in (self.rank, self.peer, self.group))
        halves = []
        for i in more[len(fewer) :].tolist():
            if not done[i] and not self.side.unfinished[i]:
                a, b = (rank, peer) if int(self.rank[i]) == rank else (peer, rank)
                row, is_send = int(self.row[i]), bool(self.is_send[i])
                halves.append(Half(a, b, group, row, is_send, False))
        return halves

    def _from_newest(self, waiting: Ints, others: Ints) -> Ints:
        """Indices in ``others`` of the other halves, where both sides list unfinished halves.

        Batched exchanges are usually symmetric. A half whose batch waits for another half may have
        been served long ago, so counting from the oldest unfinished one would be off: match equal
        numbers instead. An index past the end: no other half.
        """
        numbered: dict[int, int] = {}
        for place, seq in enumerate(self.side.seq[others].tolist()):
            numbered.setdefault(seq, place)
        places = [
            numbered.get(int(self.side.seq[i]), len(others)) if self.batched[i] else k
            for k, i in enumerate(waiting.tolist())
        ]
        return np.array(places, np.int64)


def pending_halves(trace: Trace, front: Frontiers, hidden: frozenset[int]) -> list[Half]:
    """Every unfinished half.

    ``hidden`` are ranks whose early records are gone (wrapped, or only active entries listed):
    their halves are paired from the newest end, because the older ones finished in pairs.
    """
    if not (front.p2p & front.unfinished).any():
        return []
    table = _Halves(trace, front, hidden)
    unfinished = table.side.unfinished
    if not unfinished.any():
        return []
    halves: list[Half] = []
    tagged: list[tuple[list[Half], list[Half]]] = []
    for part in table.channels():
        alike = table.by_tag(part)
        found = [half for same in alike for half in table.unfinished_of(same)]
        if len(alike) == 1:
            halves += found
        else:
            tagged.append((found, [half for same in alike for half in table.unseen_of(same)]))
    waiting = _waiting_since(trace, [*halves, *(half for found, _ in tagged for half in found)])
    halves += [h for found, unseen in tagged for h in _across_tags(found, unseen, waiting)]
    for i in np.flatnonzero(unfinished & (table.peer < 0)).tolist():
        rank, group, row = int(table.rank[i]), int(table.group[i]), int(table.row[i])
        halves.append(Half(rank, NONE, group, row, False, None))
    return halves


def tags_count(trace: Trace, *rows: int) -> bool:
    """Whether halves only match under the same tag and tags are recorded. Devices ignore tags."""
    records = trace.records
    return all(
        int(records["root"][row]) >= 0
        and is_on_host(trace.signatures[int(records["signature"][row])])
        for row in rows
    )


def differ_in_tag(trace: Trace, half: Half) -> bool:
    """Whether a half and its partner have different tags that count: they never match."""
    tags, rows = trace.records["root"], (half.row, half.partner_row)
    return NONE not in rows and tags_count(trace, *rows) and tags[rows[0]] != tags[rows[1]]


def _waiting_since(trace: Trace, halves: Iterable[Half]) -> dict[int, int]:
    """Per rank the row of the first unfinished half that it waits for."""
    flags = trace.records["flags"]
    waited = int(Flag.BLOCKING | Flag.WAITED | Flag.COALESCED_MEMBER)
    since: dict[int, int] = {}
    for half in halves:
        if int(flags[half.row]) & waited:
            since[half.rank] = min(half.row, since.get(half.rank, half.row))
    return since


def _across_tags(halves: list[Half], unseen: list[Half], waiting: Mapping[int, int]) -> list[Half]:
    """Halves of one channel; those that the two sides wait for under different tags become
    partners.

    They were meant for each other: neither side can issue anything else before they match. What a
    rank had issued when it began to wait for an older half (``waiting``: its row), it is going to
    wait for as well; of that, ``unseen`` is not known to have finished.
    """
    lone = [
        h
        for h in (*halves, *unseen)
        if h.matched is False and NONE < waiting.get(h.rank, NONE) <= h.row
    ]
    lone.sort(key=lambda half: half.row)
    met: dict[int, int] = {}
    for send, recv in zip(
        [h for h in lone if h.is_send], [h for h in lone if not h.is_send], strict=False
    ):
        met[send.row], met[recv.row] = recv.row, send.row
    return [replace(h, matched=True, partner_row=met[h.row]) if h.row in met else h for h in halves]


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
    if rank in unfinished_alone(trace):
        own = part[part["group"] == half.group]  # finished sends are not listed, but counted
    return int(own["p2p_seq"].max()) if len(own) else None


_WAITED = int(Flag.BLOCKING | Flag.WAITED)
_DROPPED = int(Flag.ASYNC | Flag.UNOBSERVED)


def waits_for_dropped_half(trace: Trace, half: Half) -> bool:
    """Whether an unfinished half is waited for, and its other half was dropped."""
    if half.partner_row == NONE or differ_in_tag(trace, half):
        return False
    flags = trace.records["flags"]
    own, other = int(flags[half.row]), int(flags[half.partner_row])
    return (
        own & _WAITED != 0
        and not own & int(Flag.COALESCED_MEMBER)
        and other & (_DROPPED | _WAITED) == _DROPPED
        and is_on_host(trace.signatures[int(trace.records["signature"][half.row])])
    )
