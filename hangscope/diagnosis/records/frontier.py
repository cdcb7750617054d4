"""Frontiers: how far every rank got in every group, from records and counters.

A *pair* is one (rank, group). All aggregates have one value per pair and are computed over record
columns, without a Python loop over records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.observability import shows_returns, unfinished_alone
from hangscope.diagnosis.records.blocking_calls import returned
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


class Columns:
    """What `frontiers` works on: the kind of every record, and its (rank, group) pair."""

    def __init__(self, trace: Trace) -> None:
        records, members = trace.records, trace.members
        self.trace = trace
        self.flags = records["flags"]
        self.seq = records["collective_seq"]
        self.p2p = flagged(self.flags, Flag.P2P)
        self.member = flagged(self.flags, Flag.COALESCED_MEMBER)
        """Per record: is a member of a batch, which executes as a whole."""
        self.groups = max(len(trace.groups), 1)
        key = records["rank"].astype(np.int64) * self.groups + records["group"]
        self.batch_row, self.p2p_batch = self._batches(key)
        # The terminator of a p2p batch concerns only its partners: other members of the group need
        # not have one, so it is never aligned by its collective number.
        self.collective = ~self.p2p & ~self.member & ~self.p2p_batch & (self.seq > 0)
        of_members = members["rank"].astype(np.int64) * self.groups + members["group"]
        self.keys, pair = index_of(np.concatenate([key, of_members]))
        """Sorted, one per pair: ``rank * groups + group``."""
        self.of_record, self.of_member = pair[: len(records)], pair[len(records) :]
        self.rank, self.group = self.keys // self.groups, self.keys % self.groups
        self.in_part = np.isin(records["rank"], sorted(unfinished_alone(trace)))
        """Per record: finished operations beside it are not listed."""

    def filled(self, value: int) -> Ints:
        """One value per pair."""
        return np.full(len(self.keys), value, np.int64)

    def newest(self, where: Bools, least: Ints) -> Ints:
        """Per pair the highest number of the records ``where``, at least ``least``."""
        found = least.copy()
        np.maximum.at(found, self.of_record[where], self.seq[where])
        return found

    def oldest(self, where: Bools) -> Ints:
        """Per pair the lowest number of the records ``where``; 0: none."""
        found = self.filled(_FAR)
        np.minimum.at(found, self.of_record[where], self.seq[where])
        found[found == _FAR] = 0
        return found

    def _batches(self, key: Ints) -> tuple[Ints, Bools]:
        """For each batch member the row of its batch, and which batches consist of p2p only.

        A batch's row (the terminator) follows its members and has the same rank and group
        (``key``).
        """
        records, p2p = self.trace.records, self.p2p
        batch_row = np.full(len(records), -1, np.int64)
        p2p_batch = np.zeros(len(records), bool)
        members = np.flatnonzero(self.member)
        batches = np.flatnonzero(flagged(self.flags, Flag.COALESCED_BATCH))
        if not len(members) or not len(batches):
            return batch_row, p2p_batch
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
        p2p_batch[rows[(rows >= 0) & p2p[members]]] = True
        return batch_row, p2p_batch

    def counted(self) -> tuple[Ints, Ints]:
        """Per pair the collectives completed and issued according to its counters, else `UNKNOWN`.

        Native counters do not separate sends from collectives: groups with both, or with sends
        only, are not counted.
        """
        members = self.trace.members
        with_p2p = np.zeros(self.groups, bool)
        with_p2p[self.trace.records["group"][self.p2p | self.p2p_batch]] = True
        pure = ~with_p2p[members["group"]] | (members["p2p_enqueued"] >= 0)
        counted = (members["completed"] >= 0) & pure
        completed, enqueued = self.filled(UNKNOWN), self.filled(UNKNOWN)
        np.maximum.at(completed, self.of_member[counted], members["completed"][counted])
        np.maximum.at(enqueued, self.of_member[pure], members["enqueued"][pure])
        return completed, enqueued

    def counts_alone(self, counter: Ints) -> Bools:
        """Pairs for which ``counter`` shows what is pending without a record (a log line, or an
        only-active dump that lost entries).

        A ring's counter (and that of its export) stops at anything it cannot observe, where the
        record knows better. A native counter is the backend's own; it adds nothing if the next
        number is a batch of sends and receives.
        """
        on_record = np.zeros(len(self.keys), bool)
        known = (self.collective & shows_returns(self.trace)) | self.p2p_batch
        on_record[self.of_record[known & (self.seq == counter[self.of_record] + 1)]] = True
        alone: Bools = (counter >= 0) & ~on_record
        return alone

    def ends(self) -> tuple[Bools, Ints, Bools]:
        """What has finished: by its own record, or because something later could not have finished
        otherwise.

        Returns
        -------
        tuple
            Per record, whether it is done; per group, the newest collective that needs all members
            and that some member has finished; per pair, ``late`` as in `Frontiers`.
        """
        records, collective, group = (
            self.trace.records,
            self.collective,
            self.trace.records["group"],
        )
        done = records["state"] == int(State.COMPLETED)
        if len(records):  # a batch member, with its batch
            done |= (self.batch_row >= 0) & done[self.batch_row]
        done |= returned(self.trace)
        # Nobody can finish a later collective of all members while an earlier one waits for a
        # member.
        needs_all = ~records_where(self.trace, is_one_sided)
        implied = self.newest(collective & done & needs_all, self.filled(0))
        done |= collective & (self.seq < implied[self.of_record])
        # A peer's completion proves that every member issued the operation, so a rank that finished
        # something later in the group does not wait in it: the rank was stopped or killed before it
        # noticed.
        everybody = np.zeros(self.groups, np.int64)
        np.maximum.at(everybody, self.group, implied)
        later = self.newest(collective & done, self.filled(0))
        done |= collective & (self.seq <= everybody[group]) & (self.seq < later[self.of_record])
        # A peer that finished a later collective of all members received this rank's part of it,
        # which a communicator executes after everything issued earlier.
        untold = collective & ~done & (self.seq < everybody[group])
        late = np.zeros(len(self.keys), bool)
        late[self.of_record[untold & ~flagged(self.flags, Flag.UNOBSERVED)]] = True
        return done | untold, everybody, late

    def unfinished(self, done: Bools, counter: Ints) -> Bools:
        """Per record: known not to have finished; ``counter`` is that of its pair."""
        unfinished: Bools = ~done & ~flagged(self.flags, Flag.UNOBSERVED)
        # If a counter covers the collective, the entry's own state is merely late.
        vouched = self.collective & (self.seq <= counter[self.of_record])
        unfinished &= ~(vouched & ~flagged(self.flags, Flag.TIMED_OUT))
        # A batch member never reports its own end: the batch does.
        partial = self.in_part | flagged(self.flags, Flag.RETIRED)
        unfinished &= ~(self.member & (self.batch_row < 0) & partial)
        return unfinished

    def pending_ns(self, pending: Ints, pending_row: Ints) -> Ints:
        """Per pair, when the oldest unfinished collective was issued; 0 if unknown."""
        issued = self.filled(0)
        if len(self.trace.records):
            issued = np.where(pending_row >= 0, self.trace.records["created_ns"][pending_row], 0)
        counted = self.filled(0)
        np.maximum.at(counted, self.of_member, self.trace.members["enqueued_ns"])
        found: Ints = np.where((pending > 0) & (issued == 0), counted, issued)
        return found


def frontiers(trace: Trace) -> Frontiers:
    """Reduce a `Trace` to its frontiers, in time linear in its records."""
    columns = Columns(trace)
    of_record, seq, collective = columns.of_record, columns.seq, columns.collective
    done, everybody, late = columns.ends()
    ended = everybody[columns.group]
    counter, issued = columns.counted()
    enqueued = columns.newest(np.ones(len(seq), bool), issued)
    completed = columns.newest(collective & done, np.maximum(counter, 0))

    unfinished = columns.unfinished(done, counter)
    pending = columns.oldest(collective & unfinished)
    reached = np.maximum(counter, ended - 1)  # peers' completions show what it had no time to count
    ahead = (enqueued > reached) & columns.counts_alone(counter)
    pending = np.where(ahead & (pending == 0), reached + 1, pending)

    pending_row = columns.filled(-1)
    oldest = np.flatnonzero(collective & unfinished & (seq == pending[of_record]))[::-1]
    pending_row[of_record[oldest]] = oldest
    # If only unfinished entries are listed, everything issued before the oldest has finished,
    # unless a counter says otherwise: the buffer may have been overwritten as well.
    before = (pending_row >= 0) & (counter == UNKNOWN)
    before[before] = columns.in_part[pending_row[before]]
    completed = np.where(before, np.maximum(completed, pending - 1), completed)
    return Frontiers(
        rank=columns.rank,
        group=columns.group,
        enqueued=enqueued,
        completed=completed,
        pending=pending,
        pending_row=pending_row,
        pending_ns=columns.pending_ns(pending, pending_row),
        first=columns.oldest(collective),
        ended=ended,
        late=late,
        collective=collective,
        unfinished=unfinished,
        p2p=columns.p2p,
        batch_row=columns.batch_row,
    )


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
