"""Sends and receives: which pending halves have a partner, and which wait for one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hangscope.diagnosis.records.alignment import Side, shift
from hangscope.diagnosis.records.frontier import Frontiers, Ints
from hangscope.diagnosis.records.kinds import is_on_host, is_sending, which
from hangscope.trace.model import NONE, Flag, Records, Trace


@dataclass(frozen=True, slots=True)
class Half:
    """An unfinished send or recv. ``matched``: its partner issued the other half; None: unknown."""

    rank: int
    peer: int
    group: int
    row: int
    is_send: bool
    matched: bool | None
    partner_row: int = NONE


def pending_halves(trace: Trace, front: Frontiers, hidden: frozenset[int]) -> list[Half]:
    """Every unfinished half.

    ``hidden`` are ranks whose early records are gone (wrapped, or only active entries listed):
    there, halves are paired from the newest end, because the older ones finished in pairs.
    """
    records = trace.records
    batch = (records["flags"] & int(Flag.COALESCED_BATCH)) != 0
    rows = np.flatnonzero(front.p2p & ~batch)  # a batch's own row names no partner
    if not len(rows):
        return []
    is_send = which(trace, is_sending, rows)
    rank = records["rank"][rows].astype(np.int64)
    peer = _with_only_partner(trace, records["group"][rows], rank, records["peer"][rows])
    open_ = front.unfinished[rows]
    batched = front.batch_row[rows]
    inside = batched >= 0
    open_[inside] &= front.unfinished[batched[inside]]
    if not open_.any():
        return []
    span = int(max(rank.max(), peer.max())) + 2
    source = np.where(is_send, rank, peer) + 1
    target = np.where(is_send, peer, rank) + 1
    channel = (records["group"][rows].astype(np.int64) * span + source) * span + target
    concerned = np.unique(channel[open_ & (peer >= 0)])
    keep = np.isin(channel, concerned)
    halves: list[Half] = []
    anybody = _from_anybody(rows, rank, peer, records["group"][rows], is_send, open_)
    order = np.flatnonzero(keep)
    order = order[np.argsort(channel[order], kind="stable")]
    early = _from_their_first(trace, rows, hidden)
    if len(order):
        bounds = np.flatnonzero(np.diff(channel[order])) + 1
        tag = _tags(trace, rows)
        side = Side(
            records["p2p_seq"][rows],
            records["created_ns"][rows],
            _ended(records, rows, batched),
            open_,
        )
        for part in np.split(order, bounds):
            found: list[Half] = []
            alike = _by_tag(tag, part)
            for same in alike:
                found += _channel(
                    trace, rows, rank, peer, side, is_send, open_, same, hidden, early, anybody
                )
            halves += found if len(alike) == 1 else _across_tags(trace, found)
    for i in np.flatnonzero(open_ & (peer < 0)).tolist():
        halves.append(
            Half(int(rank[i]), NONE, int(records["group"][rows[i]]), int(rows[i]), False, None)
        )
    return halves


def _from_their_first(
    trace: Trace, rows: Ints, hidden: frozenset[int]
) -> frozenset[tuple[int, int]]:
    """(rank, group) of ``hidden`` ranks whose sends and receives are on record from the first on.

    Only unfinished entries were listed there, and the recorder's numbers have no hole: of batches
    every half stays listed, finished or not.
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


def _ended(records: Records, rows: Ints, batched: Ints) -> Ints:
    """When each half was seen to have finished, a batched one with its batch; 0: not known."""
    ended: Ints = records["completed_ns"][rows].astype(np.int64)
    inside = batched >= 0
    ended[inside] = records["completed_ns"][batched[inside]]
    return ended


def _from_anybody(
    rows: Ints,
    rank: Ints,
    peer: Ints,
    group: Ints,
    is_send: np.typing.NDArray[np.bool_],
    open_: np.typing.NDArray[np.bool_],
) -> dict[tuple[int, int], list[int]]:
    """Per (rank, group) that receives from any source the records of its unfinished ones."""
    found: dict[tuple[int, int], list[int]] = {}
    for i in np.flatnonzero((peer < 0) & ~is_send).tolist():
        waiting = found.setdefault((int(rank[i]), int(group[i])), [])
        if open_[i]:
            waiting.append(int(rows[i]))
    return found


def _with_only_partner(trace: Trace, group: Ints, rank: Ints, peer: Ints) -> Ints:
    """The peers, and where none is recorded but the group has two members, the other member."""
    peer = peer.astype(np.int64)
    for i in np.flatnonzero(peer < 0).tolist():
        members = trace.groups[int(group[i])].ranks
        if len(members) == 2 and int(rank[i]) in members:
            peer[i] = members[0] if members[1] == rank[i] else members[1]
    return peer


def tags_count(trace: Trace, *rows: int) -> bool:
    """Whether halves meet only under one tag, and theirs are on record. Devices ignore tags."""
    records = trace.records
    return all(
        int(records["root"][row]) >= 0
        and is_on_host(trace.signatures[int(records["signature"][row])])
        for row in rows
    )


def _tags(trace: Trace, rows: Ints) -> Ints:
    """Per half its tag, -1 where tags do not count."""
    tags = trace.records["root"][rows].astype(np.int64)
    found: Ints = np.where(which(trace, is_on_host, rows), tags, NONE)
    return found


def _by_tag(tag: Ints, part: Ints) -> list[Ints]:
    """The halves of one channel, those of each tag apart."""
    tags = tag[part]
    if (tags < 0).any():
        return [part]
    return [part[tags == value] for value in np.unique(tags)]


def _across_tags(trace: Trace, halves: list[Half]) -> list[Half]:
    """Halves of one channel; those that both sides wait for under different tags are partners.

    They were meant for each other: neither side can issue anything else before they have met.
    """
    waited = int(Flag.BLOCKING | Flag.WAITED | Flag.COALESCED_MEMBER)
    lone = [h for h in halves if h.matched is False and int(trace.records["flags"][h.row]) & waited]
    sends = [h for h in lone if h.is_send]
    met: dict[int, int] = {}
    for send, recv in zip(sends, [h for h in lone if not h.is_send], strict=False):
        met[send.row], met[recv.row] = recv.row, send.row
    return [replace(h, matched=True, partner_row=met[h.row]) if h.row in met else h for h in halves]


def _channel(
    trace: Trace,
    rows: Ints,
    rank: Ints,
    peer: Ints,
    side: Side,
    is_send: np.typing.NDArray[np.bool_],
    open_: np.typing.NDArray[np.bool_],
    part: Ints,
    hidden: frozenset[int],
    early: frozenset[tuple[int, int]],
    anybody: dict[tuple[int, int], list[int]],
) -> list[Half]:
    sending, receiving = part[is_send[part]], part[~is_send[part]]
    sample = int(part[0])
    a, b = int(rank[sample]), int(peer[sample])
    concluded = bool((trace.records["flags"][rows[part]] & int(Flag.SYNTHETIC)).any())
    group = int(trace.records["group"][rows[sample]])
    # A receive from any source takes sends that then are missing here: counting is off.
    takers = [anybody[key] for key in ((a, group), (b, group)) if key in anybody]
    lacking = any(r in hidden and (r, group) not in early for r in (a, b))
    partial = lacking or concluded or bool(takers)
    absent = b not in trace.ranks
    result = []
    flags = trace.records["flags"][rows[part]]
    batched = set(part[(flags & int(Flag.COALESCED_MEMBER)) != 0].tolist())
    counted = partial and batched and not concluded and not takers
    for mine, others in ((sending, receiving), (receiving, sending)):
        known = counted and len(mine) and len(others)
        by = shift(side.at(mine), side.at(others)) if known else None
        open_mine = mine[open_[mine]]
        open_others = others[open_[others]]
        done_mine = len(mine) - len(open_mine)
        for k, i in enumerate(open_mine.tolist()):
            partner = NONE
            matched: bool | None
            if absent or int(peer[i]) not in trace.ranks:
                matched = None
            elif by is not None:
                place = len(others) - len(mine) + int(np.flatnonzero(mine == i)[0]) + by
                matched = place < len(others)
                partner = int(rows[others[place]]) if 0 <= place < len(others) else NONE
            elif partial:
                place = _same_number(side.seq, i, open_others) if i in batched else k
                matched = 0 <= place < len(open_others)
                partner = int(rows[open_others[place]]) if matched else NONE
                if not matched and int(peer[i]) in hidden and len(open_others) == 0:
                    matched = None
            else:
                matched = done_mine + k < len(others)
                partner = int(rows[others[done_mine + k]]) if matched else NONE
            if not matched and is_send[i] and (taker := anybody.get((int(peer[i]), group))):
                matched, partner = True, taker[0]
            result.append(
                Half(
                    int(rank[i]),
                    int(peer[i]),
                    int(trace.records["group"][rows[i]]),
                    int(rows[i]),
                    bool(is_send[i]),
                    matched,
                    partner,
                )
            )
    return result


def _same_number(seq: Ints, half: int, others: Ints) -> int:
    """Place in ``others`` of the half with the same number, or -1.

    Batched exchanges are symmetric as a rule; a half whose batch waits for another half may have
    been served long ago, so counting from the oldest unfinished one would be off.
    """
    hits = np.flatnonzero(seq[others] == seq[half])
    return int(hits[0]) if len(hits) else NONE
