"""Builds the wait-for graph of `diagnosis.graph.places` from frontiers, pairs and processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from hangscope.diagnosis.ends.swept import standstill_s
from hangscope.diagnosis.graph.half_places import HalfPlaces, blocking_sends
from hangscope.diagnosis.graph.held_up import held_up_by_sends
from hangscope.diagnosis.graph.lock_places import lock_places
from hangscope.diagnosis.graph.phase_places import phase_places
from hangscope.diagnosis.graph.places import Place, Waits
from hangscope.diagnosis.graph.stores import store_places
from hangscope.diagnosis.graph.unnamed_batches import unnamed_batches
from hangscope.diagnosis.groups.unlisted import Unlisted
from hangscope.diagnosis.processes.host import End, Host, in_communication
from hangscope.diagnosis.records.agreement import ONE_SIDED, family
from hangscope.diagnosis.records.evidence import hidden_ranks, rank_bounds, recorded_ranks
from hangscope.diagnosis.records.frontier import UNKNOWN, Frontiers, Ints
from hangscope.diagnosis.records.kinds import is_one_sided, which
from hangscope.diagnosis.records.pairing import Half, pending_halves
from hangscope.diagnosis.records.returned import blocks_caller
from hangscope.diagnosis.records.turns import in_turn
from hangscope.trace import formats
from hangscope.trace.model import NONE, Flag, State, Trace


class Builder:
    """Builds `Waits` group by group."""

    def __init__(self, trace: Trace, front: Frontiers, hosts: Mapping[int, Host]) -> None:
        self.trace = trace
        self.front = front
        self.hosts = hosts
        self.hidden = hidden_ranks(trace)
        self.counting = {s.rank for s in trace.sources if s.format == formats.RING}
        self.recorded = recorded_ranks(trace)
        self.places: list[Place] = []
        self.oldest_row: dict[int, int] = {}
        """Per rank the record of its oldest unfinished operation."""
        self.device: dict[int, int] = {}
        self.halted: dict[tuple[int, int], list[int]] = {}
        """Ranks that were stopped inside an operation that some of their peers have finished."""
        self.one_sided = self._one_sided_groups()
        self.bounds = rank_bounds(trace)
        self.blocking = blocks_caller(trace)
        self.unobserved = bool((trace.records["flags"] & int(Flag.UNOBSERVED)).any())
        self.unlisted = Unlisted(trace)
        self._seen_in: dict[int, tuple[int, ...]] = {}

    def _one_sided_groups(self) -> frozenset[int]:
        rows = which(self.trace, is_one_sided) & self.front.collective
        return frozenset(np.unique(self.trace.records["group"][rows]).tolist())

    def build(self) -> Waits:
        """The graph over all groups and all unfinished sends and receives."""
        halves = pending_halves(self.trace, self.front, self.hidden)
        blocking = self._find_oldest(halves)
        of_group = self.front.of_group()
        self._seen_in = {g: self._members(g, pairs) for g, pairs in of_group.items()}
        for group, pairs in of_group.items():
            self._group(group, pairs)
        self.places += HalfPlaces(
            self.trace,
            self.front,
            self.hosts,
            self.bounds,
            self.recorded,
            self.hidden,
            self.oldest_row,
            blocking,
        ).of(halves)
        for index, place in enumerate(self.places):
            if place.half is not None and place.done and not place.targets:
                self.device[place.half.rank] = index
        self.places += unnamed_batches(self.trace, self.front, self.oldest_row)
        self.places += phase_places(self.trace, self.front, self.hosts)
        waiting = frozenset(r for p in self.places if not p.weak for r in p.waiters)
        self.places += store_places(self.trace, self.hosts, waiting)
        self.places += lock_places(self.trace, self.bounds, self.hosts, self.places)
        self._without_the_finished()
        places_of: dict[int, list[int]] = defaultdict(list)
        for index, place in enumerate(self.places):
            for rank in place.waiters:
                places_of[rank].append(index)
        # A fire-and-forget send explains a rank's standstill only where nothing else does.
        held = held_up_by_sends(self.places, places_of, self.oldest_row)
        for rank, indexes in places_of.items():
            strong = [i for i in indexes if not self.places[i].weak]
            if rank in held:
                places_of[rank] = [i for i in indexes if i not in held[rank]]
            elif strong:
                for i in indexes:
                    if self.places[i].weak:
                        self.places[i].waiters = [r for r in self.places[i].waiters if r != rank]
                places_of[rank] = strong
        return Waits(self.places, dict(places_of), self.device)

    def _find_oldest(self, halves: list[Half]) -> frozenset[int]:
        """Fills `oldest_row`; returns the sends that hold up what comes after them."""
        front = self.front
        for rank, pairs in front.of_rank().items():
            rows = front.pending_row[pairs]
            rows = rows[rows >= 0]
            if len(rows):
                self.oldest_row[rank] = int(rows.min())
        for half in halves:
            # A batch is waited for as a whole; a lone send may be on its way while others go on.
            in_batch = int(front.batch_row[half.row]) != NONE
            if half.is_send and not in_batch and half.rank in self.oldest_row:
                continue
            self.oldest_row[half.rank] = min(self.oldest_row.get(half.rank, half.row), half.row)
        blocking = blocking_sends(self.trace, front, halves, self.oldest_row)
        for row in blocking:
            rank = int(self.trace.records["rank"][row])
            self.oldest_row[rank] = min(self.oldest_row[rank], row)
        return blocking

    def _members(self, group: int, pairs: Ints) -> tuple[int, ...]:
        ranks = self.trace.groups[group].ranks if group < len(self.trace.groups) else ()
        return ranks or tuple(self.front.rank[pairs].tolist())

    def _group(self, group: int, pairs: Ints) -> None:
        front = self.front
        members = self._members(group, pairs)
        extra = self.unlisted.of(group, members, self._seen_in)
        if len(members) + len(extra) < 2:
            self._alone(group, pairs, members)
            return
        pending = front.pending[pairs].copy()
        enqueued = front.enqueued[pairs].copy()
        ranks = front.rank[pairs]
        completed = front.completed[pairs]
        rows = front.pending_row[pairs].copy()
        finished = int(completed.max())
        for i, rank in enumerate(ranks.tolist()):
            host = self.hosts.get(rank)
            if enqueued[i] <= 0 and not self._knows_start(rank):
                # A ring counts on when its records wrap: it knows that nothing was ever issued.
                enqueued[i] = 0 if enqueued[i] == 0 and rank in self.counting else UNKNOWN
            elif enqueued[i] < 0:
                enqueued[i] = 0
            if pending[i] and enqueued[i] == pending[i] and self._has_left(rank, int(rows[i])):
                pending[i], rows[i] = 0, NONE
            if (
                host is not None
                and host.frozen
                and 0 < pending[i] <= finished
                and self._together(group, int(rows[i]))
            ):
                if host.state == "stopped":
                    self.halted.setdefault((group, int(pending[i])), []).append(rank)
                # Nobody could write down that it finished; a peer did.
                older = int(rows[i])
                pending[i] = finished + 1 if enqueued[i] > finished else 0
                rows[i] = self._row_of(group, rank, int(pending[i])) if pending[i] else NONE
                if host.gone and self.oldest_row.get(rank) == older and rows[i] != NONE:
                    self.oldest_row[rank] = int(rows[i])  # it waited there, for nothing older
        known = enqueued >= 0
        if not known.any():
            return
        enqueued = np.where(known, np.maximum(enqueued, 0), UNKNOWN)
        position = {rank: i for i, rank in enumerate(ranks.tolist())}
        outside = [r for r in members if r not in position]
        outside += extra
        unknown = [int(r) for r, k in zip(ranks, known, strict=True) if not k]
        absent_everywhere: list[int] = []
        for rank in outside:
            (absent_everywhere if self._knows_start(rank) else unknown).append(rank)
        lowest = 0 if absent_everywhere else int(enqueued[known].min())
        self._unobserved(group, ranks, enqueued, pending, rows, lowest)
        if not (pending > 0).any():
            return
        for seq in np.unique(pending[pending > 0]).tolist():
            here = pending == seq
            waiters = ranks[here].tolist()
            example = rows[here]
            row = int(example[example >= 0][0]) if (example >= 0).any() else NONE
            if row == NONE and self._dates_ends:  # its record does not say whether it has finished
                row = self._row_of(group, waiters[0], int(seq))
            began = front.pending_ns[pairs][here]
            known_rows = example[example >= 0]
            if not (began > 0).any():  # found through its records alone: unobserved
                began = self.trace.records["created_ns"][known_rows]
            began = began[began > 0]
            place = Place(
                group,
                int(seq),
                waiters,
                row=row,
                members=members,
                began_ns=int(began.min()) if len(began) else 0,
            )
            on_peer = seq <= finished and self._together(group, row)
            if not on_peer:
                place.absent = ranks[known & (enqueued < seq)].tolist() + absent_everywhere
                place.unknown = list(unknown)
                if unknown and all(self._failed_with_others(r) for r in place.absent):
                    place.absent = []  # one that left nothing explains their ends
            place.done = ranks[
                known & (enqueued >= seq) & ((pending > seq) | (pending == 0)) & (completed >= seq)
            ].tolist()
            if not place.absent and not place.unknown:
                self._all_in(place, ranks, pending, rows, on_peer)
            elif not place.absent:
                self._late(place, ranks, pending, rows)
            if place.waiters:
                self.places.append(place)

    def _alone(self, group: int, pairs: Ints, members: tuple[int, ...]) -> None:
        """A group of which one member is known: it waits, and nothing says for whom."""
        outsiders = bool(self.trace.groups[group].outsiders)
        for pair in pairs.tolist():
            rank, seq = int(self.front.rank[pair]), int(self.front.pending[pair])
            row = int(self.front.pending_row[pair])
            if not seq and outsiders:
                row = self._last_unseen(group, rank)
                seq = int(self.trace.records["collective_seq"][row]) if row >= 0 else 0
            if row < 0:
                row = self._row_of(group, rank, seq)
            if seq > 0 and self.oldest_row.get(rank, row) == row:
                self.places.append(
                    Place(
                        group,
                        seq,
                        [rank],
                        row=row,
                        members=members,
                        began_ns=int(self.front.pending_ns[pair]) or self._issued_ns(row),
                        blind=True,
                        absent=[] if outsiders else self._guessed_members(row, rank),
                    )
                )

    def _issued_ns(self, row: int) -> int:
        return int(self.trace.records["created_ns"][row]) if row >= 0 else 0

    def _last_unseen(self, group: int, rank: int) -> int:
        """The rank's newest operation, if it is of this group and nobody saw whether it ended."""
        if rank not in self.bounds:
            return NONE
        row = self.bounds[rank][1] - 1
        record = self.trace.records[row]
        hidden = record["flags"] & int(Flag.UNOBSERVED) and record["state"] != State.COMPLETED
        return row if hidden and record["group"] == group else NONE

    def _guessed_members(self, row: int, rank: int) -> list[int]:
        """Native Gloo lists no members: there, a group that one rank used was meant for all."""
        if (
            row < 0
            or self.unlisted.gaps
            or not self.trace.records["flags"][row] & int(Flag.UNOBSERVED)
        ):
            return []
        return sorted(self.recorded - {rank})

    def _has_left(self, rank: int, row: int) -> bool:
        """Whether the rank's own stack shows that a call that blocks until it is done is over."""
        host = self.hosts.get(rank)
        if row < 0 or host is None or not host.stack or host.gone or not self.blocking[row]:
            return False
        facts = self.trace.ranks[rank]
        record = self.trace.records[row]
        if int(record["flags"]) & int(Flag.RETIRED) and record["state"] != int(State.COMPLETED):
            return False  # it has left it by an error: what it needed has not come for all that
        sampled = max((t.sampled_ns for t in facts.threads if t.is_main), default=0)
        if sampled <= int(record["created_ns"]):
            return False
        return not any(in_communication(t.stack) for t in facts.threads) and not any(
            f.name == "backward" for f in host.stack
        )

    @cached_property
    def _dates_ends(self) -> bool:
        """Whether it is recorded when operations ended, as Gloo's own recorder does not."""
        return bool((self.trace.records["completed_ns"] > 0).any())

    @cached_property
    def _standstill_ns(self) -> float:
        return standstill_s(self.trace) * 1e9

    def _failed_with_others(self, rank: int) -> bool:
        """Whether a rank ended in an operation by no doing of its own, while the job moved."""
        host, row = self.hosts.get(rank), self.oldest_row.get(rank)
        if host is None or row is None or not (host.gone and host.secondary):
            return False
        lasted_ns = host.end_ns - int(self.trace.records["created_ns"][row])
        return bool(host.end_ns) and lasted_ns < self._standstill_ns

    def _together(self, group: int, row: int) -> bool:
        """Whether nobody can finish the operation before every member has issued it."""
        if group not in self.one_sided:
            return True
        if row < 0:
            return False
        return (
            family(self.trace.signatures[self.trace.records["signature"][row]].op) not in ONE_SIDED
        )

    def _unobserved(
        self, group: int, ranks: Ints, enqueued: Ints, pending: Ints, rows: Ints, lowest: int
    ) -> None:
        """Where completion cannot be seen, a rank ahead of a member waits where that one is due.

        In a group with operations that some finish alone, at the first that nobody can. Where
        everybody is equally far, the last operation is unfinished if the recorder did say of the
        one before that it finished, and the rank has issued nothing since: waits for functional
        collectives are not seen, and who has gone on waits in what came later.
        """
        if not self.unobserved:
            return
        hidden = int(Flag.UNOBSERVED)
        flags = self.trace.records["flags"]
        for i, rank in enumerate(ranks.tolist()):
            if pending[i] or enqueued[i] < max(lowest, 1):
                continue
            due = min(lowest + 1, int(enqueued[i]))
            if group in self.one_sided:
                due = self._first_together(group, rank, lowest + 1)
            row = self._row_of(group, rank, due) if due else NONE
            if row < 0 or not flags[row] & hidden:
                continue
            if enqueued[i] == lowest:
                before = self._row_of(group, rank, lowest - 1)
                if (
                    row + 1 < self.bounds[rank][1]
                    or before < 0
                    or self.trace.records["state"][before] != int(State.COMPLETED)
                ):
                    continue
            pending[i] = due
            rows[i] = row

    def _first_together(self, group: int, rank: int, start: int) -> int:
        """Number of the first operation from ``start`` on that nobody finishes alone; 0: none."""
        low, high = self.bounds.get(rank, (0, 0))
        part = self.trace.records[low:high]
        later = (part["group"] == group) & (part["collective_seq"] >= start)
        rows = low + np.flatnonzero(later & self.front.collective[low:high])
        numbers = self.trace.records["collective_seq"]
        return next((int(numbers[row]) for row in rows.tolist() if self._together(group, row)), 0)

    def _knows_start(self, rank: int) -> bool:
        """Whether no record means that nothing was issued."""
        return rank in self.recorded and rank not in self.hidden

    def _row_of(self, group: int, rank: int, seq: int) -> int:
        records = self.trace.records
        low, high = self.bounds.get(rank, (0, 0))
        part = records[low:high]
        hit = np.flatnonzero(
            (part["group"] == group)
            & (part["collective_seq"] == seq)
            & self.front.collective[low:high]
        )
        return int(low + hit[0]) if len(hit) else NONE

    def _all_in(
        self, place: Place, ranks: Ints, pending: Ints, rows: Ints, finished_on_peer: bool
    ) -> None:
        """Everybody has issued it: who is late on the device?"""
        if finished_on_peer:
            index = len(self.places)
            stuck = []
            halted = {
                *self.halted.get((place.group, place.seq), ()),
                *(r for r in place.waiters if self._is_stopped(r)),
            }
            if halted:  # they owe the others their part
                place.behind = sorted(halted)
                place.waiters = [r for r in place.waiters if r not in halted]
                return
            for rank in place.waiters:
                i = int(np.flatnonzero(ranks == rank)[0])
                if rows[i] < 0 or self.oldest_row.get(rank, NONE) == rows[i]:
                    stuck.append(rank)
                    self.device[rank] = index
            place.waiters = stuck
            return
        self._late(place, ranks, pending, rows)

    def _is_stopped(self, rank: int) -> bool:
        return rank in self.hosts and self.hosts[rank].state == "stopped"

    def _late(self, place: Place, ranks: Ints, pending: Ints, rows: Ints) -> None:
        """Members that have issued it but are held up by something older of theirs."""
        first_here, behind = [], []
        for rank, seq, row in zip(ranks.tolist(), pending.tolist(), rows.tolist(), strict=True):
            if not seq or seq > place.seq:
                continue
            if seq < place.seq or (row >= 0 and self._after_older(rank, row)):
                behind.append(rank)
            else:
                first_here.append(rank)
        gone = [
            r
            for r in place.members
            if r in self.hosts
            and self.hosts[r].gone
            and self.hosts[r].end is not End.TORN_DOWN
            and not self.hosts[r].secondary
            and not (self.hosts[r].end is End.CLEAN and r in self._failed_last)
        ]
        place.behind = gone or behind
        place.waiters = first_here  # what holds the others up is older

    def _after_older(self, rank: int, row: int) -> bool:
        """Whether something older of the rank's is unfinished that holds ``row`` up.

        What threads issue in groups of their own runs side by side, but on a device.
        """
        oldest = self.oldest_row.get(rank, row)
        if oldest >= row:
            return False
        records, low = self.trace.records, self.bounds[rank][0]
        hidden = int(Flag.UNOBSERVED)
        if records["thread"][oldest] == records["thread"][row] or records["flags"][row] & hidden:
            return True
        if "gloo" not in self.trace.groups[int(records["group"][row])].backend:
            return True
        own = in_turn(records[low : row + 1]) & self.front.unfinished[low : row + 1]
        return bool(own[:-1].any())

    @cached_property
    def _failed_last(self) -> set[int]:
        """Ranks whose newest record is of an operation that failed."""
        records = self.trace.records
        if not len(records):
            return set()
        ranks = records["rank"]
        last = np.append(np.flatnonzero(ranks[1:] != ranks[:-1]), len(records) - 1)
        rows = records[last]
        wrong = (rows["flags"] & int(Flag.FAILED) != 0) & (rows["completed_ns"] == 0)
        return set(rows["rank"][wrong].tolist())

    def _without_the_finished(self) -> None:
        """A rank that ended cleanly waits for nobody, whatever its last records look like.

        Unless the last thing it did was to fail in an operation that somebody never issued, or left
        no record of: then what failed was swallowed, by a thread that died or a handler that went
        on to the end.
        """
        failed = self._failed_last
        for place in self.places:
            place.waiters = [
                r
                for r in place.waiters
                if r not in self.hosts
                or self.hosts[r].end is not End.CLEAN
                or (r in failed and (place.absent or place.unknown))
            ]
            if not place.waiters:
                place.absent, place.behind, place.unknown = [], [], []
