"""Frontiers: how far every rank got in every group, from records and counters.

A *pair* is one (rank, group). All aggregates have one value per pair and are computed over record
columns, without a Python loop over records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.records.blocking_calls import from_rings, returned
from hangscope.diagnosis.records.kinds import is_one_sided, records_where
from hangscope.trace.model import Flag, State, Trace, flagged

UNKNOWN = -1
"""No counter, no record, and no way to infer one."""

_FAR = np.iinfo(np.int64).max
_DENSE_PAIRS = 32_000_000

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Frontiers:
    """One row per pair, sorted by (rank, group). Sequence numbers are those of collectives.

    ``enqueued`` is the last one issued (`UNKNOWN` if nothing shows it), ``completed`` the last one
    known to be finished (0: none), ``pending`` the oldest unfinished one (0: none), ``first`` the
    oldest one on record (0: none), ``pending_row`` the row of ``pending`` or -1.
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
    """The newest collective that needs all members and that some member has finished (0: none)."""
    late: Bools
    """Whether its own record or counter shows one as unfinished although members finished a later
    one."""
    collective: Bools
    """Per record: is a collective of its group (not a send, receive or batch member)."""
    unfinished: Bools
    """Per record: known not to have finished."""
    p2p: Bools
    """Per record: is a send or receive, batched or not."""
    batch_row: Ints
    """Per record: the row of the batch it is a member of, or -1."""

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


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The kind of each record: one value per record."""

    p2p: Bools
    member: Bools
    """Member of a batch, which executes as a whole."""
    batch_row: Ints
    """Row of the batch that a member belongs to, or -1."""
    p2p_batch: Bools
    """Is the row of a batch of sends and receives."""
    collective: Bools


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The (rank, group) pairs of a trace, each as ``rank * groups + group``, and each record's
    pair."""

    keys: Ints
    """Sorted, one per pair."""
    groups: int
    """Number of groups, at least one."""
    of_record: Ints
    of_member: Ints

    @property
    def group(self) -> Ints:
        """The group of each pair."""
        return self.keys % self.groups

    @property
    def rank(self) -> Ints:
        """The rank of each pair."""
        return self.keys // self.groups

    def filled(self, value: int) -> Ints:
        """One value per pair."""
        return np.full(len(self.keys), value, np.int64)


@dataclass(frozen=True, slots=True)
class _Ends:
    """What has finished: by its own record, or because something later could not have finished
    otherwise."""

    done: Bools
    """Per record."""
    everybody: Ints
    """Per group the newest collective that needs all members and that some member has finished."""
    late: Bools
    """Per pair, see `Frontiers`."""


def frontiers(trace: Trace) -> Frontiers:
    """Reduce a `Trace` to its frontiers, in time linear in its records."""
    seq = trace.records["collective_seq"]
    kinds = _kinds_of(trace)
    pairs = _pairs_of(trace)
    of_record = pairs.of_record
    ends = _ends_of(trace, kinds, pairs)
    ended = ends.everybody[pairs.group]
    counter, enqueued = _counted(trace, kinds, pairs)
    np.maximum.at(enqueued, of_record, seq)
    completed = np.maximum(counter, 0)
    finished = kinds.collective & ends.done
    np.maximum.at(completed, of_record[finished], seq[finished])

    unfinished = _unfinished(trace, kinds, ends.done, counter[of_record])
    open_rows = np.flatnonzero(kinds.collective & unfinished)
    pending = pairs.filled(_FAR)
    np.minimum.at(pending, of_record[open_rows], seq[open_rows])
    reached = np.maximum(counter, ended - 1)  # peers' completions show what it had no time to count
    ahead = (enqueued > reached) & _counts_alone(trace, kinds, pairs, counter)
    pending = np.where(ahead & (pending == _FAR), reached + 1, pending)
    pending[pending == _FAR] = 0

    pending_row = pairs.filled(-1)
    is_oldest = seq[open_rows] == pending[of_record[open_rows]]
    pending_row[of_record[open_rows[is_oldest]][::-1]] = open_rows[is_oldest][::-1]
    # If only unfinished entries are listed, everything issued before the oldest has finished,
    # unless a counter says otherwise: the buffer may have been overwritten as well.
    listed = np.isin(pairs.rank, _only_active(trace)) & (pending_row >= 0) & (counter == UNKNOWN)
    completed = np.where(listed, np.maximum(completed, pending - 1), completed)

    first = pairs.filled(_FAR)
    rows = np.flatnonzero(kinds.collective)
    np.minimum.at(first, of_record[rows], seq[rows])
    first[first == _FAR] = 0
    last_row = pairs.filled(-1)
    last_row[of_record] = np.arange(len(trace.records))
    return Frontiers(
        rank=pairs.rank,
        group=pairs.group,
        enqueued=enqueued,
        completed=completed,
        pending=pending,
        pending_row=pending_row,
        pending_ns=_pending_ns(trace, pairs, pending, pending_row),
        first=first,
        last_row=last_row,
        ended=ended,
        late=ends.late,
        collective=kinds.collective,
        unfinished=unfinished,
        p2p=kinds.p2p,
        batch_row=kinds.batch_row,
    )


def _counted(trace: Trace, kinds: _Kinds, pairs: _Pairs) -> tuple[Ints, Ints]:
    """Per pair the collectives completed and issued according to its counters, else `UNKNOWN`.

    Native counters do not separate sends from collectives: groups with both, or with sends only,
    are not counted.
    """
    members = trace.members
    with_p2p = np.zeros(pairs.groups, bool)
    with_p2p[trace.records["group"][kinds.p2p | kinds.p2p_batch]] = True
    pure = ~with_p2p[members["group"]] | (members["p2p_enqueued"] >= 0)
    counted = (members["completed"] >= 0) & pure
    completed, enqueued = pairs.filled(UNKNOWN), pairs.filled(UNKNOWN)
    np.maximum.at(completed, pairs.of_member[counted], members["completed"][counted])
    np.maximum.at(enqueued, pairs.of_member[pure], members["enqueued"][pure])
    return completed, enqueued


def _counts_alone(trace: Trace, kinds: _Kinds, pairs: _Pairs, counter: Ints) -> Bools:
    """Pairs for which ``counter`` shows what is pending without a record (a log line, or an
    only-active dump that lost entries).

    A ring's counter (and that of its export) stops at anything it cannot observe, where the record
    knows better. A native counter is the backend's own; it adds nothing if the next number is a
    batch of sends and receives.
    """
    next_one = trace.records["collective_seq"] == counter[pairs.of_record] + 1
    on_record = np.zeros(len(pairs.keys), bool)
    known = (kinds.collective & from_rings(trace)) | kinds.p2p_batch
    on_record[pairs.of_record[known & next_one]] = True
    alone: Bools = (counter >= 0) & ~on_record
    return alone


def _kinds_of(trace: Trace) -> _Kinds:
    records = trace.records
    flags = records["flags"]
    p2p = flagged(flags, Flag.P2P)
    member = flagged(flags, Flag.COALESCED_MEMBER)
    batch = flagged(flags, Flag.COALESCED_BATCH)
    batch_row, p2p_batch = _batches(trace, p2p, member, batch)
    # The terminator of a p2p batch concerns only its partners: other members of the group need not
    # have one, so it is never aligned by its collective number.
    collective = ~p2p & ~member & ~p2p_batch & (records["collective_seq"] > 0)
    return _Kinds(p2p, member, batch_row, p2p_batch, collective)


def _pairs_of(trace: Trace) -> _Pairs:
    records, members = trace.records, trace.members
    groups = max(len(trace.groups), 1)
    record_key = records["rank"].astype(np.int64) * groups + records["group"]
    member_key = members["rank"].astype(np.int64) * groups + members["group"]
    keys, pair = index_of(np.concatenate([record_key, member_key]))
    return _Pairs(keys, groups, pair[: len(records)], pair[len(records) :])


def _ends_of(trace: Trace, kinds: _Kinds, pairs: _Pairs) -> _Ends:
    """Infer from each completion what else must have finished before it."""
    records, collective, of_record = trace.records, kinds.collective, pairs.of_record
    seq = records["collective_seq"]
    done = (records["state"] == int(State.COMPLETED)) | _member_done(records, kinds.batch_row)
    done |= returned(trace)
    # Nobody can finish a later collective of all members while an earlier one waits for a member.
    implied = pairs.filled(0)
    rows = np.flatnonzero(collective & done & ~records_where(trace, is_one_sided))
    np.maximum.at(implied, of_record[rows], seq[rows])
    done |= collective & (seq < implied[of_record])
    # A peer's completion proves that every member issued the operation, so a rank that finished
    # something later in the group does not wait in it: the rank was stopped or killed before it
    # noticed.
    everybody = np.zeros(pairs.groups, np.int64)
    np.maximum.at(everybody, pairs.group, implied)
    later = pairs.filled(0)
    rows = np.flatnonzero(collective & done)
    np.maximum.at(later, of_record[rows], seq[rows])
    done |= collective & (seq <= everybody[records["group"]]) & (seq < later[of_record])
    # A peer that finished a later collective of all members received this rank's part of it, which
    # a communicator executes after everything issued earlier.
    untold = collective & ~done & (seq < everybody[records["group"]])
    unobserved = flagged(records["flags"], Flag.UNOBSERVED)
    late = np.zeros(len(pairs.keys), bool)
    late[of_record[untold & ~unobserved]] = True
    return _Ends(done | untold, everybody, late)


def _unfinished(trace: Trace, kinds: _Kinds, done: Bools, counter: Ints) -> Bools:
    """Per record: known not to have finished; ``counter`` is that of its pair."""
    flags = trace.records["flags"]
    unobserved = flagged(flags, Flag.UNOBSERVED)
    retired = flagged(flags, Flag.RETIRED)
    timed_out = flagged(flags, Flag.TIMED_OUT)
    unfinished: Bools = ~done & ~unobserved
    # If a counter covers the collective, the entry's own state is merely late.
    vouched = trace.records["collective_seq"] <= counter
    unfinished &= ~(kinds.collective & vouched & ~timed_out)
    # A batch member never reports its own end: the batch does.
    partial = np.isin(trace.records["rank"], _only_active(trace))
    unfinished &= ~(kinds.member & (kinds.batch_row < 0) & (retired | partial))
    return unfinished


def _only_active(trace: Trace) -> Ints:
    """Ranks for which only unfinished entries are listed."""
    return np.array([r for r, f in trace.ranks.items() if f.only_active], np.int64)


def _pending_ns(trace: Trace, pairs: _Pairs, pending: Ints, pending_row: Ints) -> Ints:
    """Per pair, when the oldest unfinished collective was issued; 0 if unknown."""
    issued = np.zeros(len(pending), np.int64)
    if len(trace.records):
        issued = np.where(pending_row >= 0, trace.records["created_ns"][pending_row], 0)
    counted = pairs.filled(0)
    np.maximum.at(counted, pairs.of_member, trace.members["enqueued_ns"])
    found: Ints = np.where((pending > 0) & (issued == 0), counted, issued)
    return found


def _batches(trace: Trace, p2p: Bools, member: Bools, batch: Bools) -> tuple[Ints, Bools]:
    """For each batch member the row of its batch, and which batches consist of p2p only.

    A batch's row (the terminator) follows its members and has the same rank and group.
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
    # If finished batches are not listed, the next terminator does not belong to these members.
    mine, its = records["p2p_seq"][members], records["p2p_seq"][rows]
    rows = np.where(p2p[members] & (mine > 0) & (its > 0) & (mine != its), -1, rows)
    batch_row[members] = rows
    p2p_members = members[(rows >= 0) & p2p[members]]
    p2p_batch[batch_row[p2p_members]] = True
    return batch_row, p2p_batch


def _member_done(records: npt.NDArray[np.void], batch_row: Ints) -> Bools:
    """Batch members whose batch has completed."""
    if not len(records):
        return np.zeros(0, bool)
    done: Bools = (batch_row >= 0) & (records["state"][batch_row] == int(State.COMPLETED))
    return done


def index_of(key: Ints) -> tuple[Ints, Ints]:
    """Sorted unique keys, and each element's index in them.

    Keys are usually small non-negative integers, so a presence table beats sorting millions.
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
