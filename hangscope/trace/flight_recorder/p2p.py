"""Point-to-point operations and coalesced batches among a dump's records."""

from __future__ import annotations

from typing import Any

import numpy as np

from hangscope.trace import operations
from hangscope.trace.flight_recorder.groups import GroupTable
from hangscope.trace.flight_recorder.signatures import Signatures
from hangscope.trace.model import NONE, Flag, Records, State, flagged

_ENOUGH_BATCHES = 3
"""This many single operations with their successors missing are not a coincidence."""


def mark_batches(
    records: Records, flags: Any, p2p: Any, batch: Any, *, numbered: bool = True
) -> None:
    """Flag batches and their members.

    Members are operations of one group that share a counter with each other or with the batch's own
    row after them. A batch of only sends and receives counts as point-to-point. ``numbered``: the
    record ids are the recorder's own.
    """
    flags[batch] |= np.uint16(Flag.COALESCED_BATCH)
    order = np.lexsort((np.arange(len(records)), records["group"]))
    group, coll = records["group"][order], records["collective_seq"][order]
    pair, p, b = records["p2p_seq"][order], p2p[order], batch[order]
    if len(order) > 1:
        same_group = group[1:] == group[:-1]
        seq = np.where(p, pair, coll)
        twins = ~b[1:] & ~b[:-1] & (p[1:] == p[:-1]) & (seq[1:] == seq[:-1])
        twins &= p[1:] | (coll[1:] > 0)  # collectives without a number are not members
        # The batch's own row has the same counters as its last member.
        ends = b[1:] & ~b[:-1] & (coll[1:] == coll[:-1]) & (~p[:-1] | (pair[1:] == pair[:-1]))
        known = coll[1:] != NONE
        joined = same_group & known & (twins | ends)
        linked = np.zeros(len(order), bool)
        linked[1:] |= joined
        linked[:-1] |= joined
        member = linked & ~b
        flags[order[member]] |= np.uint16(Flag.COALESCED_MEMBER)
        pairs_only = np.zeros(len(order), bool)
        pairs_only[1:] = same_group & ends & p[:-1]
        p2p[order[pairs_only]] = True
        # The oldest record of a wrapped buffer may be a batch whose members are gone.
        p2p[0] |= batch[0] and bool((pairs_only & (group == records["group"][0])).any())
    flags[p2p] |= np.uint16(Flag.P2P)
    if numbered and _is_rest_of_batch(records, flags):
        flags[0] |= np.uint16(Flag.COALESCED_MEMBER)
    flags[_single_member_batches(records, flags, numbered)] |= np.uint16(Flag.COALESCED_MEMBER)


def outermost_batches(records: Records, named: Any, ends: Any) -> Any:
    """Those of the rows ``named`` as batches that are not inside another batch.

    ``allreduce_coalesced`` inside ``_coalescing_manager`` is a member: the manager's own batch row
    (one of ``ends``) follows it with the same counters.
    """
    inner = named & ~ends
    if not inner.any() or not ends.any():
        return named
    outer = set(zip(*_batch_keys(records, ends), strict=True))
    inside = [place in outer for place in zip(*_batch_keys(records, inner), strict=True)]
    found = named.copy()
    found[np.flatnonzero(inner)[np.array(inside, bool)]] = False
    return found


def _is_rest_of_batch(records: Records, flags: Any) -> bool:
    """Whether the oldest record is what is left of a batch whose other members are overwritten.

    It then equals the last member of the group's next batch, and no record has the next id: the
    batch's own row had it.
    """
    if len(records) < 2 or not int(records["record_id"][0]) or not flags[0] & Flag.P2P:
        return False
    if flags[0] & (Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH):
        return False
    if records["record_id"][1] == records["record_id"][0] + 1:
        return False
    following = records["group"] == records["group"][0]
    following &= records["p2p_seq"] == records["p2p_seq"][0] + 1
    following &= flagged(flags, Flag.COALESCED_MEMBER)
    members = np.flatnonzero(following)
    signatures = records["signature"]
    return bool(len(members)) and bool(signatures[members[-1]] == signatures[0])


def _single_member_batches(records: Records, flags: Any, numbered: bool) -> Any:
    """Members of one-operation batches whose own row is missing, as finished rows are.

    If only unfinished entries are listed, a batch's members stay forever (their completion is never
    recorded), while its own row, which had the next record id, disappears. Operations outside a
    batch look different: finished ones are missing between them, or the next record follows without
    a gap. Without ids, complete batches in the same group are the evidence.
    """
    nothing = np.zeros(0, np.int64)
    if len(records) < 2 or (not numbered and (records["state"] == State.COMPLETED).any()):
        return nothing
    ids = records["record_id"]
    gap = (ids[1:] != ids[:-1] + 1) | (not numbered)
    if not gap.any():
        return nothing
    batch = flagged(flags, Flag.COALESCED_BATCH)
    half = flagged(flags, Flag.P2P) & ~batch & (records["p2p_seq"] > 0)
    member = half & flagged(flags, Flag.COALESCED_MEMBER)
    found = [nothing]
    for group in np.unique(records["group"][half & ~member]).tolist():
        here = records["group"] == group
        lone = np.flatnonzero(here & half & ~member)
        numbers = np.unique(records["p2p_seq"][here & half])
        unbroken = int(numbers[-1] - numbers[0]) + 1 == len(numbers)
        explicit = bool((here & (member | (batch & half))).any())
        batches = explicit or (numbered and len(lone) >= _ENOUGH_BATCHES)
        lone = lone[lone < len(records) - 1]  # no record follows the last one to show a gap
        if unbroken and batches and gap[lone].all():
            found.append(lone)
    return np.concatenate(found)


def completed_before_batch(records: Records) -> Any:
    """Rows of operations that claim to be complete while the batch they are in is not.

    NCCL launches a batch once its last operation has been added. The event that torch records after
    an operation inside it (``_coalescing_manager`` around collectives) precedes that launch and
    proves nothing; only the batch's own row, which follows, counts.
    """
    batch = flagged(records["flags"], Flag.COALESCED_BATCH)
    over = records["state"] == State.COMPLETED
    waiting = set(zip(*_batch_keys(records, batch & ~over), strict=True))
    if not waiting:
        return np.zeros(0, np.int64)
    inside = [place in waiting for place in zip(*_batch_keys(records, over), strict=True)]
    return np.flatnonzero(over)[np.array(inside, bool)]


def _batch_keys(records: Records, rows: Any) -> tuple[list[int], list[int], list[int]]:
    """Group and sequence numbers, which a batch shares with its members."""
    return (
        records["group"][rows].tolist(),
        records["collective_seq"][rows].tolist(),
        records["p2p_seq"][rows].tolist(),
    )


def set_peers(records: Records, signatures: Signatures, table: GroupTable, rank: int) -> None:
    """Fill in the peers' global ranks where the group's members are known."""
    parsed = [operations.parse(s.raw) for s in signatures.table]
    pairs = np.array([operations.is_p2p(p.op) and p.src + p.dst > -2 for p in parsed], bool)
    rows = np.flatnonzero(pairs[records["signature"]])
    known: dict[tuple[int, int], int] = {}
    for row in rows.tolist():
        key = (int(records["signature"][row]), int(records["group"][row]))
        peer = known.get(key)
        if peer is None:
            group = table.groups[key[1]]
            peer = known[key] = global_peer(
                parsed[key[0]], group.ranks, rank, group.desc == "default_pg"
            )
        records["peer"][row] = peer


def global_peer(
    name: operations.OperationName, ranks: tuple[int, ...], rank: int, default_group: bool
) -> int:
    """The global rank of a send's or receive's peer; -1 for any source or unknown members.

    Recorders write group ranks. Some collectors write global ranks, which is recognisable if the
    rank's own number is not a valid place in the group.
    """
    own, other = (name.src, name.dst) if name.op == "send" else (name.dst, name.src)
    if other < 0:
        return NONE
    if not ranks:
        return other if default_group else NONE
    local = other < len(ranks) and (own < 0 or (own < len(ranks) and ranks[own] == rank))
    if local:
        return ranks[other]
    if other in ranks and (own < 0 or own == rank):
        return other
    return ranks[other] if other < len(ranks) else NONE
