"""How far every rank got in every group: the frontiers, from records and counters alike.

A *pair* is one (rank, group). All aggregates are one value per pair, computed over the record
columns without a Python loop over records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.records.kinds import is_on_host, is_one_sided, which
from hangscope.trace import formats
from hangscope.trace.model import Flag, State, Trace

UNKNOWN = -1
"""No counter, no record and no way to conclude one."""

_FAR = np.iinfo(np.int64).max
_DENSE_PAIRS = 32_000_000

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Frontiers:
    """One row per pair, sorted by (rank, group). Sequence numbers are collective ones.

    ``enqueued`` is the last one issued (`UNKNOWN` where nothing tells), ``completed`` the last one
    known finished (0: none known), ``pending`` the oldest unfinished one (0: none), ``first`` the
    oldest one on record (0: none), ``pending_row`` the record of ``pending`` or -1.
    """

    rank: Ints
    group: Ints
    enqueued: Ints
    completed: Ints
    pending: Ints
    pending_row: Ints
    pending_ns: Ints
    first: Ints
    last_row: Ints
    ended: Ints
    """The newest collective that needs all members and that some member of the group has finished
    (0: none known)."""
    late: Bools
    """Its own record or counter calls one unfinished after which members have finished another."""
    collective: Bools
    """Per record: stands for a collective of its group (no send, no recv, no batch member)."""
    unfinished: Bools
    """Per record: known not to have finished."""
    p2p: Bools
    """Per record: a send or recv, batched or not."""
    batch_row: Ints
    """Per record: the batch that a batch member belongs to, or -1."""

    def of_group(self) -> dict[int, Ints]:
        """Pair indices per group."""
        order = np.argsort(self.group, kind="stable")
        bounds = np.flatnonzero(np.diff(self.group[order])) + 1
        parts = np.split(order, bounds)
        return {int(self.group[p[0]]): p for p in parts if len(p)}

    def of_rank(self) -> dict[int, Ints]:
        """Pair indices per rank."""
        if not len(self.rank):
            return {}
        bounds = np.flatnonzero(np.diff(self.rank)) + 1
        parts = np.split(np.arange(len(self.rank)), bounds)
        return {int(self.rank[p[0]]): p for p in parts if len(p)}


def _batches(trace: Trace, p2p: Bools, member: Bools, batch: Bools) -> tuple[Ints, Bools]:
    """For each batch member the row that stands for its batch, and which batches are all p2p.

    A batch's row comes after its members (the terminator) and is of the same rank and group.
    """
    records = trace.records
    batch_row = np.full(len(records), -1, np.int64)
    p2p_batch = np.zeros(len(records), bool)
    members = np.flatnonzero(member)
    batches = np.flatnonzero(batch)
    if not len(members) or not len(batches):
        return batch_row, p2p_batch
    # Only terminators of the same (rank, group) count: sort both by that key, then by row.
    groups = max(len(trace.groups), 1)
    key = records["rank"].astype(np.int64) * groups + records["group"]
    scale = len(records) + 1
    keyed = np.sort(key[batches] * scale + batches)
    slot = np.searchsorted(keyed, key[members] * scale + members)
    found = slot < len(keyed)
    target = keyed[np.minimum(slot, len(keyed) - 1)]
    found &= target // scale == key[members]
    rows = np.where(found, target % scale, -1)
    # Where finished batches are not listed, the next one's row is not that of these members.
    mine, its = records["p2p_seq"][members], records["p2p_seq"][rows]
    rows = np.where(p2p[members] & (mine > 0) & (its > 0) & (mine != its), -1, rows)
    batch_row[members] = rows
    p2p_members = members[(rows >= 0) & p2p[members]]
    p2p_batch[batch_row[p2p_members]] = True
    return batch_row, p2p_batch


def frontiers(trace: Trace) -> Frontiers:
    """Reduce a `Trace` to its frontiers, in time linear in its records."""
    records, members = trace.records, trace.members
    flags = records["flags"]
    p2p = (flags & int(Flag.P2P)) != 0
    member = (flags & int(Flag.COALESCED_MEMBER)) != 0
    batch = (flags & int(Flag.COALESCED_BATCH)) != 0
    batch_row, p2p_batch = _batches(trace, p2p, member, batch)
    # A terminator of sends and recvs is a point-to-point matter: members of the group need not
    # all have one, so it is never aligned by its collective number.
    collective = ~p2p & ~member & ~p2p_batch & (records["collective_seq"] > 0)

    groups = max(len(trace.groups), 1)
    record_key = records["rank"].astype(np.int64) * groups + records["group"]
    member_key = members["rank"].astype(np.int64) * groups + members["group"]
    keys, pair = index_of(np.concatenate([record_key, member_key]))
    of_record, of_member = pair[: len(records)], pair[len(records) :]
    count = len(keys)

    # Native counters do not tell sends from collectives: in a group that has both, or sends only,
    # they count neither.
    with_p2p = np.zeros(groups, bool)
    with_p2p[records["group"][p2p | p2p_batch]] = True
    pure = ~with_p2p[members["group"]] | (members["p2p_enqueued"] >= 0)
    seq = records["collective_seq"]
    enqueued = np.full(count, UNKNOWN, np.int64)
    completed = np.zeros(count, np.int64)
    np.maximum.at(enqueued, of_record, seq)
    np.maximum.at(enqueued, of_member[pure], members["enqueued"][pure])
    known_completed = (members["completed"] >= 0) & pure
    counter = np.full(count, UNKNOWN, np.int64)
    np.maximum.at(counter, of_member[known_completed], members["completed"][known_completed])
    np.maximum.at(completed, of_member[known_completed], members["completed"][known_completed])

    done = (records["state"] == int(State.COMPLETED)) | _member_done(records, batch_row)
    unobserved = (flags & int(Flag.UNOBSERVED)) != 0
    retired = (flags & int(Flag.RETIRED)) != 0
    timed_out = (flags & int(Flag.TIMED_OUT)) != 0
    done |= returned(trace)
    # Nobody finishes a later collective of all members while an earlier one still waits for one.
    whole = ~which(trace, is_one_sided)
    implied = np.zeros(count, np.int64)
    rows = np.flatnonzero(collective & done & whole)
    np.maximum.at(implied, of_record[rows], seq[rows])
    done |= collective & (seq < implied[of_record])
    # What every member has issued, as a peer's end tells, cannot wait on a rank that has finished
    # something later in the group: its end was not noticed before the rank was stopped or killed.
    everybody = np.zeros(groups, np.int64)
    np.maximum.at(everybody, keys % groups, implied)
    later = np.zeros(count, np.int64)
    rows = np.flatnonzero(collective & done)
    np.maximum.at(later, of_record[rows], seq[rows])
    done |= collective & (seq <= everybody[records["group"]]) & (seq < later[of_record])
    # A peer that finished a later collective of all members had this rank's part of it, which a
    # communicator carries out after all that was issued before.
    untold = collective & ~done & (seq < everybody[records["group"]])
    late = np.zeros(count, bool)
    late[of_record[untold & ~unobserved]] = True
    done |= untold
    finished_row = collective & done
    np.maximum.at(completed, of_record[finished_row], seq[finished_row])
    unfinished = ~done & ~unobserved
    # Where a counter vouches for the collective, the entry's own state is only late.
    unfinished &= ~(collective & (seq <= counter[of_record]) & ~timed_out)
    # A member of a batch never reports its own end: the batch does.
    blank = np.array([f.only_active for f in trace.ranks.values()], bool)
    partial = np.isin(records["rank"], np.array(list(trace.ranks), np.int64)[blank])
    unfinished &= ~(member & (batch_row < 0) & (retired | partial))

    pending = np.full(count, _FAR, np.int64)
    open_rows = np.flatnonzero(collective & unfinished)
    np.minimum.at(pending, of_record[open_rows], seq[open_rows])
    # Counters alone (a log line, an only-active dump that lost entries) also tell of pending work.
    # A ring's counter (and its export's) stops at what it cannot observe; there the record knows
    # better. A native counter is kept by the backend itself.
    on_record = np.zeros(count, bool)
    following = collective & (seq == counter[of_record] + 1) & _from_rings(trace)
    on_record[of_record[following]] = True
    ended = everybody[keys % groups]
    reached = np.maximum(counter, ended - 1)  # peers' ends tell of what it had no time to count
    ahead = (counter >= 0) & (enqueued > reached) & ~on_record
    pending = np.where(ahead & (pending == _FAR), reached + 1, pending)
    pending[pending == _FAR] = 0

    pending_row = np.full(count, -1, np.int64)
    is_oldest = seq[open_rows] == pending[of_record[open_rows]]
    pending_row[of_record[open_rows[is_oldest]][::-1]] = open_rows[is_oldest][::-1]
    # Where only unfinished entries are listed, what was issued before the oldest has finished,
    # unless a counter knows better: the buffer may have been overwritten as well.
    listed = np.isin(keys // groups, np.array(list(trace.ranks), np.int64)[blank])
    listed &= (pending_row >= 0) & (counter == UNKNOWN)
    completed = np.where(listed, np.maximum(completed, pending - 1), completed)
    pending_ns = (
        np.where(pending_row >= 0, records["created_ns"][pending_row], 0)
        if len(records)
        else np.zeros(count, np.int64)
    )
    counted_ns = np.zeros(count, np.int64)
    np.maximum.at(counted_ns, of_member, members["enqueued_ns"])
    pending_ns = np.where((pending > 0) & (pending_ns == 0), counted_ns, pending_ns)

    first = np.full(count, _FAR, np.int64)
    rows = np.flatnonzero(collective)
    np.minimum.at(first, of_record[rows], seq[rows])
    first[first == _FAR] = 0
    last_row = np.full(count, -1, np.int64)
    last_row[of_record] = np.arange(len(records))
    return Frontiers(
        rank=keys // groups,
        group=keys % groups,
        enqueued=enqueued,
        completed=completed,
        pending=pending,
        pending_row=pending_row,
        pending_ns=pending_ns,
        first=first,
        last_row=last_row,
        ended=ended,
        late=late,
        collective=collective,
        unfinished=unfinished,
        p2p=p2p,
        batch_row=batch_row,
    )


def blocks_caller(trace: Trace) -> Bools:
    """Per record: the operation returned to its caller only when it had finished.

    Only rings say which operations were asynchronous, and only CPU backends block in the others.
    """
    records = trace.records
    flags = records["flags"]
    loose = int(Flag.ASYNC | Flag.COALESCED_MEMBER | Flag.COALESCED_BATCH | Flag.TIMED_OUT)
    # Of pairs only those that say so: isend and send may have left the same record.
    pair = flags & int(Flag.P2P | Flag.BLOCKING)
    found: Bools = which(trace, is_on_host) & ((flags & loose) == 0)
    found &= pair != int(Flag.P2P)
    return found & _from_rings(trace)


def _from_rings(trace: Trace) -> Bools:
    """Per record: whether it comes from a HangScope ring, or from a ring's export.

    Of processes only our own recorder tells a heartbeat.
    """
    told = {rank for rank, facts in trace.ranks.items() if facts.heartbeat_ns}
    rings = {
        s.rank
        for s in trace.sources
        if s.rank is not None
        and (s.format == formats.RING or (s.rank in told and s.format in formats.DUMPS))
    }
    if rings >= set(trace.ranks):
        return np.ones(len(trace.records), bool)
    found: Bools = np.isin(trace.records["rank"], np.array(sorted(rings), np.int64))
    return found


def returned(trace: Trace) -> Bools:
    """Operations that blocked their caller and after which it went on: they have finished."""
    records = trace.records
    if not len(records):
        return np.zeros(0, bool)
    waits = blocks_caller(trace) & (records["state"] != int(State.COMPLETED))
    found = np.zeros(len(records), bool)
    rows = np.flatnonzero(waits)
    # Only what the same thread issued later tells: a heartbeat on another thread goes on while the
    # main thread waits. Records are sorted by rank.
    rank = np.ascontiguousarray(records["rank"])
    last = np.searchsorted(rank, rank[rows], "right") - 1
    same = records["thread"][last] == records["thread"][rows]
    found[rows[same]] = (rows < last)[same]
    rows = rows[~same]
    for first, end in zip(*_bounds(rank, np.unique(rank[rows])), strict=True):
        threads, from_end = np.unique(records["thread"][first:end][::-1], return_index=True)
        mine = rows[(rows >= first) & (rows < end)]
        newest = end - 1 - from_end[np.searchsorted(threads, records["thread"][mine])]
        found[mine] = mine < newest
    return found


def _bounds(rank: npt.NDArray[np.int32], wanted: npt.NDArray[np.int32]) -> tuple[list[int], ...]:
    """First rows, and the rows after the last, of some ranks."""
    return np.searchsorted(rank, wanted).tolist(), np.searchsorted(rank, wanted, "right").tolist()


def _member_done(records: npt.NDArray[np.void], batch_row: Ints) -> Bools:
    """Batch members whose batch has completed."""
    if not len(records):
        return np.zeros(0, bool)
    done: Bools = (batch_row >= 0) & (records["state"][batch_row] == int(State.COMPLETED))
    return done


def index_of(key: Ints) -> tuple[Ints, Ints]:
    """Sorted unique keys and each element's place among them.

    Keys are small non-negative integers as a rule, so a presence table beats sorting millions.
    """
    if not len(key):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    low, high = int(key.min()), int(key.max())
    if high - low > _DENSE_PAIRS:
        keys, inverse = np.unique(key, return_inverse=True)
        return keys, inverse.reshape(-1)
    present = np.zeros(high - low + 1, bool)
    present[key - low] = True
    keys = np.flatnonzero(present).astype(np.int64)
    place = np.zeros(high - low + 1, np.int32)
    place[keys] = np.arange(len(keys), dtype=np.int32)
    return keys + low, place[key - low].astype(np.int64)
