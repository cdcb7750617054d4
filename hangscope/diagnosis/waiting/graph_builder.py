"""Builds the wait-for graph of `diagnosis.graph.places` from frontiers, pairs and processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.graph.lock_places import lock_places
from hangscope.diagnosis.graph.logged_batches import logged_batches
from hangscope.diagnosis.graph.p2p_places import HalfPlaces, blocking_sends, held_up_by_sends
from hangscope.diagnosis.graph.phase_places import phase_places
from hangscope.diagnosis.graph.places import Place, Waits
from hangscope.diagnosis.graph.store_places import store_places
from hangscope.diagnosis.groups.unlisted_members import UnlistedMembers
from hangscope.diagnosis.observability import end_is_unseen, runs_on_host
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.frontier import UNKNOWN, Frontiers, Ints
from hangscope.diagnosis.records.kinds import in_issue_order
from hangscope.diagnosis.records.pairing import Half, pending_halves
from hangscope.diagnosis.waiting.collective_facts import CollectiveFacts, GroupProgress
from hangscope.diagnosis.waiting.device_not_started import late_devices
from hangscope.diagnosis.waiting.device_places import device_places
from hangscope.diagnosis.waiting.relays import Relays
from hangscope.trace.model import NONE, Flag, Trace


class GraphBuilder:
    """Builds `Waits` group by group."""

    def __init__(
        self, trace: Trace, front: Frontiers, processes: Mapping[int, ProcessState]
    ) -> None:
        self.trace = trace
        self.front = front
        self.processes = processes
        self.collectives = CollectiveFacts(trace, front, processes)
        self.relays = Relays(trace, processes, self.collectives)
        self.places: list[Place] = []
        self.oldest_row: dict[int, int] = {}
        """Per rank the row of its oldest unfinished operation."""
        self.device: dict[int, int] = {}
        self.unobserved = bool((trace.records["flags"] & int(Flag.UNOBSERVED)).any())
        self.unlisted = UnlistedMembers(trace)
        self._seen_in: dict[int, tuple[int, ...]] = {}

    def build(self) -> Waits:
        """The graph over all groups and all unfinished sends and receives."""
        halves = pending_halves(self.trace, self.front, self.collectives.hidden)
        blocking = self._find_oldest(halves)
        of_group = self.front.of_group()
        self._seen_in = {g: self._members(g, pairs) for g, pairs in of_group.items()}
        for group, pairs in of_group.items():
            self._group(group, pairs)
        self._add_halves(halves, blocking)
        self.places += logged_batches(self.trace, self.front, self.oldest_row)
        self.places += phase_places(self.trace, self.front, self.processes)
        waiting = frozenset(r for p in self.places if not p.weak for r in p.waiters)
        self.places += store_places(self.trace, self.processes, waiting)
        self.places += lock_places(self.trace, self.collectives.bounds, self.processes, self.places)
        if self.unobserved:
            stuck = device_places(self.trace, self.front, self.collectives, self.places)
            self.places += [self.relays.applied(place) for place in stuck]
        self._drop_finished()
        places_of: dict[int, list[int]] = defaultdict(list)
        for index, place in enumerate(self.places):
            for rank in place.waiters:
                places_of[rank].append(index)
        held = held_up_by_sends(self.places, places_of, self.oldest_row)
        of_rank = {rank: self._blocking_places(rank, at, held) for rank, at in places_of.items()}
        return Waits(self.places, of_rank, self.device)

    def _add_halves(self, halves: list[Half], blocking: frozenset[int]) -> None:
        """Add the places of sends and receives, and ranks stuck on their device because of one."""
        self.places += HalfPlaces(
            self.trace,
            self.front,
            self.processes,
            self.collectives.bounds,
            self.collectives.recorded,
            self.collectives.hidden,
            self.oldest_row,
            blocking,
        ).of(halves)
        for index, place in enumerate(self.places):
            if place.half is not None and place.done and not place.targets:
                self.device[place.half.rank] = index
        self.device |= late_devices(self.trace, self.front, self.collectives, self.places)

    def _blocking_places(
        self, rank: int, at: list[int], held: Mapping[int, Collection[int]]
    ) -> list[int]:
        """Of the places where a rank waits, those that explain why it stands still.

        A fire-and-forget send explains that only if nothing else does; otherwise the rank no longer
        counts as waiting there. ``held``: places that a rank's sends keep it from reaching.
        """
        if rank in held:
            return [i for i in at if i not in held[rank]]
        strong = [i for i in at if not self.places[i].weak]
        for i in at if strong else ():
            if self.places[i].weak:
                others = tuple(r for r in self.places[i].waiters if r != rank)
                self.places[i] = replace(self.places[i], waiters=others)
        return strong or at

    def _find_oldest(self, halves: list[Half]) -> frozenset[int]:
        """Fill `oldest_row`; return the sends that hold up later operations."""
        front = self.front
        for rank, pairs in front.of_rank().items():
            rows = front.pending_row[pairs]
            rows = rows[rows >= 0]
            if len(rows):
                self.oldest_row[rank] = int(rows.min())
        for half in halves:
            # A batch completes as a whole; a single send may be in flight while the rank goes on.
            in_batch = int(front.batch_row[half.row]) != NONE
            if half.is_send and not in_batch and half.rank in self.oldest_row:
                continue
            self.oldest_row[half.rank] = min(self.oldest_row.get(half.rank, half.row), half.row)
        blocking = blocking_sends(self.trace, front, halves, self.oldest_row, self.processes)
        for row in blocking:
            rank = int(self.trace.records["rank"][row])
            self.oldest_row[rank] = min(self.oldest_row[rank], row)
        return blocking

    def _members(self, group: int, pairs: Ints) -> tuple[int, ...]:
        ranks = self.trace.groups[group].ranks if group < len(self.trace.groups) else ()
        return ranks or tuple(self.front.rank[pairs].tolist())

    def _group(self, group: int, pairs: Ints) -> None:
        """Add the places of one group: every collective that a member has issued and not
        finished."""
        members = self._members(group, pairs)
        extra = self.unlisted.of(group, members, self._seen_in)
        if len(members) + len(extra) < 2:
            self._single_member(group, pairs, members)
            return
        progress = self._progress(group, pairs)
        if not progress.known.any():
            return
        seen = set(progress.ranks.tolist())
        outside = [*(r for r in members if r not in seen), *extra]
        never = [r for r in outside if self.collectives.knows_start(r)]
        unknown = progress.ranks[~progress.known].tolist()
        unknown += [r for r in outside if not self.collectives.knows_start(r)]
        self._unobserved(group, progress, never)
        for seq in np.unique(progress.pending[progress.pending > 0]).tolist():
            place = self._place_at(group, seq, progress, members)
            place = self._with_targets(place, progress, never, unknown)
            if place.waiters:
                self.places.append(place)

    def _progress(self, group: int, pairs: Ints) -> GroupProgress:
        """How far each member of a group is, from its records and its process."""
        front = self.front
        here = GroupProgress(
            ranks=front.rank[pairs],
            enqueued=front.enqueued[pairs].copy(),
            completed=front.completed[pairs],
            pending=front.pending[pairs].copy(),
            rows=front.pending_row[pairs].copy(),
            began_ns=front.pending_ns[pairs],
            finished=int(front.completed[pairs].max()),
        )
        for i, rank in enumerate(here.ranks.tolist()):
            if here.enqueued[i] <= 0 and not self.collectives.knows_start(rank):
                # A ring keeps counting when its records wrap, so a zero means nothing was ever
                # issued.
                counted = here.enqueued[i] == 0 and rank in self.collectives.counting
                here.enqueued[i] = 0 if counted else UNKNOWN
            elif here.enqueued[i] < 0:
                here.enqueued[i] = 0
            row = int(here.rows[i])
            newest = here.pending[i] and here.enqueued[i] == here.pending[i]
            if newest and self.collectives.has_left(rank, row):
                here.pending[i], here.rows[i] = 0, NONE
            process = self.processes.get(rank)
            if (
                process is not None
                and process.frozen
                and 0 < here.pending[i] <= here.finished
                and self.collectives.needs_all(group, int(here.rows[i]))
                and not self.collectives.outlived(rank, group, here.finished)
            ):
                self._skip_finished_by_peers(group, here, i, process)
        return here

    def _skip_finished_by_peers(
        self, group: int, here: GroupProgress, i: int, process: ProcessState
    ) -> None:
        """A frozen process could not record a completion that a peer recorded."""
        rank, older = process.rank, int(here.rows[i])
        here.pending[i] = here.finished + 1 if here.enqueued[i] > here.finished else 0
        went_on = int(here.pending[i])
        here.rows[i] = self.collectives.row_of(group, rank, went_on) if went_on else NONE
        if process.gone and self.oldest_row.get(rank) == older and here.rows[i] != NONE:
            self.oldest_row[rank] = int(here.rows[i])  # it waited there, not for anything older

    def _place_at(
        self, group: int, seq: int, progress: GroupProgress, members: tuple[int, ...]
    ) -> Place:
        """Who waits at one collective of a group, and since when."""
        here = progress.pending == seq
        waiters = tuple(progress.ranks[here].tolist())
        rows = progress.rows[here]
        rows = rows[rows >= 0]
        row = int(rows[0]) if len(rows) else NONE
        if row == NONE and self.collectives.dates_ends:  # its record does not show completion
            row = self.collectives.row_of(group, waiters[0], seq)
        began_ns = progress.began_ns[here]
        if not (began_ns > 0).any():  # found only through unobserved records
            began_ns = self.trace.records["created_ns"][rows]
        began_ns = began_ns[began_ns > 0]
        first_ns, last_ns = (int(began_ns.min()), int(began_ns.max())) if len(began_ns) else (0, 0)
        return Place(
            group, seq, waiters, row=row, members=members, began_ns=first_ns, full_ns=last_ns
        )

    def _with_targets(
        self, place: Place, progress: GroupProgress, never: list[int], unknown: list[int]
    ) -> Place:
        """The place with its members sorted by whether they have reached it.

        ``never`` have issued nothing in the group; nothing is known about ``unknown``.
        """
        known, come = progress.known, progress.enqueued >= place.seq
        over = (progress.pending > place.seq) | (progress.pending == 0)
        finished = known & come & over & (progress.completed >= place.seq)
        place = replace(place, done=tuple(progress.ranks[finished].tolist()))
        late = progress.ranks[known & ~come].tolist()
        # A peer that has finished shows that all have come, unless one is known to have given its
        # communicator something else instead: a replay's data was taken for it.
        came = self.collectives.counting.isdisjoint(late) and place.seq <= progress.finished
        if came and self.collectives.needs_all(place.group, place.row):
            return self._on_device(place, progress)
        absent = (*late, *never)
        oldest = self.oldest_row
        failed_with_others = self.collectives.failed_with_others
        if unknown and all(failed_with_others(r, oldest.get(r, NONE)) for r in absent):
            absent = ()  # a rank that left nothing explains their ends
        place = replace(place, absent=absent, unknown=tuple(unknown))
        return place if absent else self._with_behind(place, progress)

    def _single_member(self, group: int, pairs: Ints, members: tuple[int, ...]) -> None:
        """A group with one known member: the member waits, and nothing says for whom."""
        outsiders = bool(self.trace.groups[group].outsiders)
        for pair in pairs.tolist():
            rank, seq = int(self.front.rank[pair]), int(self.front.pending[pair])
            row = int(self.front.pending_row[pair])
            if not seq and outsiders:
                row = self._last_unobserved(group, rank)
                seq = int(self.trace.records["collective_seq"][row]) if row >= 0 else 0
            if row < 0:
                row = self.collectives.row_of(group, rank, seq)
            if seq > 0 and self.oldest_row.get(rank, row) == row:
                self.places.append(
                    Place(
                        group,
                        seq,
                        (rank,),
                        row=row,
                        members=members,
                        began_ns=int(self.front.pending_ns[pair]) or self._issued_ns(row),
                        blind=True,
                        absent=() if outsiders else self._guessed_members(row, rank),
                    )
                )

    def _issued_ns(self, row: int) -> int:
        return int(self.trace.records["created_ns"][row]) if row >= 0 else 0

    def _last_unobserved(self, group: int, rank: int) -> int:
        """The rank's newest operation, if it is in this group and its end was not observed."""
        if rank not in self.collectives.bounds:
            return NONE
        row = self.collectives.bounds[rank][1] - 1
        here = self.trace.records["group"][row] == group
        return row if here and end_is_unseen(self.trace, row) else NONE

    def _guessed_members(self, row: int, rank: int) -> tuple[int, ...]:
        """Native Gloo lists no members: assume that a group used by one rank was meant for all."""
        if (
            row < 0
            or self.unlisted.gaps
            or not self.trace.records["flags"][row] & int(Flag.UNOBSERVED)
        ):
            return ()
        return tuple(sorted(self.collectives.recorded - {rank}))

    def _unobserved(self, group: int, progress: GroupProgress, never: list[int]) -> None:
        """Where completions are not recorded, let ranks that are ahead wait where the slowest is
        due.

        In a group with operations that some members finish alone, a rank waits at the first
        operation it cannot finish. If all members are equally far, the last operation counts as
        unfinished if the recorder noted the end of the one before (on the same backend), or a
        member has failed or is stopped, and the rank has issued nothing since: waits for
        functional collectives are not recorded, a rank that moved on waits later. ``never`` have
        issued nothing in the group.
        """
        if not self.unobserved:
            return
        hidden = int(Flag.UNOBSERVED)
        flags = self.trace.records["flags"]
        known = progress.known
        issued = dict.fromkeys(never, 0) | dict(
            zip(progress.ranks[known].tolist(), progress.enqueued[known].tolist(), strict=True)
        )
        lowest = min(issued.values())
        for i, rank in enumerate(progress.ranks.tolist()):
            enqueued = int(progress.enqueued[i])
            if progress.pending[i] or enqueued < max(lowest, 1):
                continue
            due = min(lowest + 1, enqueued)
            if group in self.collectives.one_sided_groups:
                due = self.collectives.first_unmet(group, rank, lowest + 1, issued)
            row = self.collectives.row_of(group, rank, due) if due else NONE
            if row < 0 or not flags[row] & hidden:
                continue
            if enqueued == lowest:
                before = self.collectives.row_of(group, rank, lowest - 1)
                if row + 1 < self.collectives.bounds[rank][1]:
                    continue
                shown = self.collectives.would_show_end(before, row)
                if not shown and not self.relays.show_unfinished(self._seen_in[group], row):
                    continue
            progress.pending[i], progress.rows[i] = due, row

    def _on_device(self, place: Place, progress: GroupProgress) -> Place:
        """All members have issued it and a peer has finished it: whose device is late?"""
        rows = dict(zip(progress.ranks.tolist(), progress.rows.tolist(), strict=True))
        oldest = {r: self.oldest_row.get(r, rows[r]) if rows[r] >= 0 else NONE for r in rows}
        place = replace(place, waiters=tuple(r for r in place.waiters if oldest[r] == rows[r]))
        explained = self.relays.applied(place)
        if explained.targets:
            return explained
        waiters = tuple(r for r in place.waiters if rows[r] < 0 or r in self.oldest_row)
        self.device.update(dict.fromkeys(waiters, len(self.places)))
        return replace(place, waiters=waiters)

    def _with_behind(self, place: Place, progress: GroupProgress) -> Place:
        """The place with the members that issued it but are held up by something older."""
        first_here: list[int] = []
        behind: list[int] = []
        members = zip(
            progress.ranks.tolist(), progress.pending.tolist(), progress.rows.tolist(), strict=True
        )
        for rank, seq, row in members:
            if not seq:
                if self.unobserved and self._is_unseen_behind_older(rank, place):
                    behind.append(rank)
            elif seq < place.seq:
                behind.append(rank)
            elif seq == place.seq:
                held = row >= 0 and self._is_behind_older(rank, row)
                (behind if held else first_here).append(rank)
        # The older operation holds the others up.
        held_up = replace(place, waiters=tuple(first_here), behind=tuple(behind))
        return self.relays.applied(held_up)

    def _is_unseen_behind_older(self, rank: int, place: Place) -> bool:
        """Whether what a rank issued there has no known end, and something older holds it up."""
        row = self.collectives.row_of(place.group, rank, place.seq)
        return row >= 0 and end_is_unseen(self.trace, row) and self._is_behind_older(rank, row)

    def _is_behind_older(self, rank: int, row: int) -> bool:
        """Whether an older unfinished operation holds ``row`` up: threads with groups of their own
        run in parallel on the host, but not on a device."""
        oldest = self.oldest_row.get(rank, row)
        if oldest >= row:
            return False
        records, low = self.trace.records, self.collectives.bounds[rank][0]
        hidden = int(Flag.UNOBSERVED)
        if records["thread"][oldest] == records["thread"][row] or records["flags"][row] & hidden:
            return True
        if not runs_on_host(self.trace.groups[int(records["group"][row])].backend):
            return True
        own = in_issue_order(records[low : row + 1]) & self.front.unfinished[low : row + 1]
        return bool(own[:-1].any())

    def _drop_finished(self) -> None:
        """Remove waits of ranks that ended cleanly, whatever their last records look like.

        Exception: a rank whose last operation failed because some member never issued it or left no
        record. The failure was swallowed, by a thread that died or by a handler that carried on.
        """
        failed = self.collectives.failed_last
        for index, place in enumerate(self.places):
            waiters = tuple(
                r
                for r in place.waiters
                if r not in self.processes
                or self.processes[r].end is not End.CLEAN
                or (r in failed and (place.absent or place.unknown))
            )
            left = replace(place, waiters=waiters)
            self.places[index] = left if waiters else left.forgotten()
