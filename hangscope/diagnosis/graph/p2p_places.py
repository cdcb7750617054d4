"""Unfinished sends and receives: whom each waits for, and what single sends hold up on a device."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.observability import end_is_unseen
from hangscope.diagnosis.processes.process_state import End, ProcessState, in_communication
from hangscope.diagnosis.processes.stacks import is_library
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.records.kinds import is_on_host
from hangscope.diagnosis.records.pace import had_stalled_before
from hangscope.diagnosis.records.pairing import (
    Half,
    differ_in_tag,
    missing_senders,
    waits_for_dropped_half,
)
from hangscope.trace.model import NONE, Flag, State, Trace

_INCOMPLETE = 0
"""Marks batches with a half whose partner is missing: nothing in between holds them up."""


def place_of(trace: Trace, half: Half) -> Place:
    """An unfinished half as a place at which its rank waits, whatever it waits for."""
    record = trace.records[half.row]
    return Place(
        half.group,
        int(record["p2p_seq"]),
        (half.rank,),
        row=half.row,
        p2p=True,
        half=half,
        began_ns=int(record["created_ns"]),
        members=(half.rank, half.peer) if half.peer != NONE else (half.rank,),
    )


def blocking_sends(
    trace: Trace,
    front: Frontiers,
    halves: Sequence[Half],
    oldest_row: Mapping[int, int],
    processes: Mapping[int, ProcessState],
) -> frozenset[int]:
    """Rows of single sends on devices that hold up later operations with the same partner.

    Operations between two ranks run in order of issue. If the partner has reached its half of a
    later operation that is still not executed, the send before it has not gone out. Nor can it go
    out if the first half that the partner would execute is a send as well. That counts for a rank
    which waits nowhere else and of whose process nothing was seen.
    """

    def alone(half: Half) -> bool:
        signature = trace.signatures[int(trace.records["signature"][half.row])]
        return int(front.batch_row[half.row]) == NONE and not is_on_host(signature)

    later: dict[tuple[int, int, int], int] = {}
    first: dict[tuple[int, int, int], Half] = {}
    for half in sorted(halves, key=lambda half: half.row):
        key = (half.rank, half.group, half.peer)
        first.setdefault(key, half)
        reached = NONE < half.partner_row <= oldest_row.get(half.peer, NONE)
        if half.matched and reached and alone(half):
            later[key] = max(later.get(key, NONE), half.row)

    def meets_a_send(half: Half) -> bool:
        process = processes.get(half.rank)
        seen = process is not None and process.is_observed
        if seen or oldest_row.get(half.rank) != half.row:
            return False
        opposite = first.get((half.peer, half.group, half.rank))
        own = first[half.rank, half.group, half.peer]
        return half is own and opposite is not None and opposite.is_send and alone(opposite)

    return frozenset(
        half.row
        for half in halves
        if half.is_send
        and (half.row < later.get((half.rank, half.group, half.peer), NONE) or meets_a_send(half))
        and alone(half)
    )


@dataclass(frozen=True, slots=True)
class HalfPlaces:
    """What is known about the ranks whose halves are examined.

    ``bounds``: each rank's slice of the records; ``recorded``: ranks with records; ``hidden``:
    ranks whose early records are gone; ``oldest_row``: the row of a rank's oldest unfinished
    operation; ``blocking``: the result of `blocking_sends`.
    """

    trace: Trace
    front: Frontiers
    processes: Mapping[int, ProcessState]
    bounds: dict[int, tuple[int, int]]
    recorded: frozenset[int]
    hidden: frozenset[int]
    oldest_row: Mapping[int, int]
    blocking: frozenset[int]

    def of(self, halves: Sequence[Half]) -> list[Place]:
        """The places of those halves that hold their rank up."""
        held = self._held_batches(halves)
        places = []
        for half in halves:
            # A batch waits for those of its halves that have no partner; the others are served.
            if not half.matched or held.get(self._batch_of(half)) != _INCOMPLETE:
                place = self._place(half, held)
                if place is not None:
                    places.append(place)
        places += self._all_served(halves, places)
        # Nor does it wait for partners inside the same exchange, if others have not reached it yet.
        late = {self._batch_of(p.half) for p in places if p.half and p.targets} - {NONE}
        # If some partners are known to be late, the unknown ones do not matter.
        known = {self._batch_of(p.half) for p in places if p.half and (p.absent or p.behind)}
        for index, place in enumerate(places):
            if place.half and self._batch_of(place.half) in known - {NONE}:
                places[index] = replace(place, unknown=())
        return [p for p in places if p.targets or not p.half or self._batch_of(p.half) not in late]

    def _held_batches(self, halves: Sequence[Half]) -> dict[int, int]:
        """Batches that something other than their own pairs holds up, and how many batches lie in
        between.

        A batch executes as a whole and its rank waits in it, so its partners may wait for whatever
        it waits for, at the latest in its next batch. Pairs with both halves present hold nothing
        up.
        """
        held = {self._batch_of(h): _INCOMPLETE for h in halves if not h.matched}
        both_there = {h.row for h in halves if h.matched}
        waits_behind: dict[int, list[int]] = defaultdict(list)
        for half in halves:
            batch, first = self._batch_of(half), half.partner_row
            if not half.matched or batch == NONE:
                continue
            if self._stands_before(half.peer, first):
                first = self.oldest_row[half.peer]
            if first != NONE and (its := self._batch_at(first)) != NONE:
                waits_behind[its].append(batch)
            elif first != half.partner_row and first not in both_there:
                held.setdefault(batch, _INCOMPLETE + 1)
        held.pop(NONE, None)
        found = deque(sorted(held, key=lambda batch: held[batch]))
        while found:
            batch = found.popleft()
            for other in waits_behind[batch]:
                if other not in held:
                    held[other] = held[batch] + 1
                    found.append(other)
        return held

    def _all_served(self, halves: Sequence[Half], places: Sequence[Place]) -> list[Place]:
        """Batches that are stuck although all their partners have finished: one place for each.

        If the records go back to the start, the rank is stuck on its device. Otherwise pairs were
        matched by position, and the batch waits for a partner whose half is no longer recorded. A
        rank that ended or cannot run could not record its completion.
        """
        standing = {self._batch_of(p.half) for p in places if p.half is not None} | {NONE}
        found = []
        for half in halves:
            batch = self._batch_of(half)
            oldest = self.oldest_row.get(half.rank, NONE)
            process = self.processes.get(half.rank)
            silent = process is not None and (process.gone or process.frozen)
            first = oldest == half.row or self._together(oldest, half.row)
            if batch in standing or silent or not first:
                continue
            standing.add(batch)
            place, partners = place_of(self.trace, half), self._partners(batch, halves)
            if self.hidden.isdisjoint(partners | {half.rank}):
                found.append(replace(place, done=tuple(sorted(partners))))
            else:
                found.append(replace(place, blind=True))
        return found

    def _partners(self, batch: int, halves: Sequence[Half]) -> set[int]:
        return {half.peer for half in halves if self._batch_of(half) == batch}

    def _batch_of(self, half: Half) -> int:
        return self._batch_at(half.row)

    def _batch_at(self, row: int) -> int:
        return NONE if row == NONE else int(self.front.batch_row[row])

    def _stands_before(self, rank: int, row: int) -> bool:
        """Whether the rank is stuck in something older than ``row``."""
        oldest = self.oldest_row.get(rank, NONE)
        return NONE != oldest < row and not self._together(oldest, row)

    def _together(self, row: int, other: int) -> bool:
        """Whether two records belong to one batch, which executes as a whole."""
        batch = int(self.front.batch_row[row])
        return batch != NONE and batch == int(self.front.batch_row[other])

    def _may_be_left_alone(self, half: Half) -> bool:
        """Whether the rank need not be waiting for this unfinished half.

        Sends are usually fire-and-forget; on a device even if the caller waits for them.
        """
        if self._batch_of(half) != NONE:
            return False
        record = self.trace.records[half.row]
        flags = int(record["flags"])
        if flags & int(Flag.BLOCKING | Flag.WAITED):
            signature = self.trace.signatures[int(record["signature"])]
            return half.is_send and not is_on_host(signature)
        return half.is_send or (bool(flags & int(Flag.ASYNC)) and not self._holds_up(half))

    def _holds_up(self, half: Half) -> bool:
        """Whether a rank's device is in a receive, and has not begun what was issued after it."""
        records, (_, end) = self.trace.records, self.bounds[half.rank]
        if not records["started_ns"][half.row]:
            return False
        later = slice(half.row + 1, end)
        waits = self.front.unfinished[later] & (records["state"][later] == int(State.SCHEDULED))
        return bool((waits & (records["group"][later] == half.group)).any())

    def _goes_on_by_itself(self, half: Half) -> bool:
        """Whether the partner has reached its half but the host has not yet waited for this one.

        A host's exchange completes without anybody waiting for it, and is only seen to finish once
        somebody does. If the user's line called into communication, the host may be waiting
        unrecorded.
        """
        record = self.trace.records[half.row]
        waited = int(record["flags"]) & int(Flag.BLOCKING | Flag.WAITED | Flag.ASYNC)
        signature = self.trace.signatures[int(record["signature"])]
        process = self.processes.get(half.rank)
        return (
            waited == int(Flag.ASYNC)
            and self._batch_of(half) == NONE
            and is_on_host(signature)
            and process is not None
            and not in_communication(tuple(takewhile(is_library, process.stack)))
        )

    def _place(self, half: Half, held: Mapping[int, int]) -> Place | None:
        """Where the half waits; None if it is served or an older operation holds its rank up."""
        oldest = self.oldest_row.get(half.rank, half.row)
        older = oldest < half.row and not self._together(oldest, half.row)
        if half.matched and older:
            return None  # both halves are there
        if half.matched is None and older and half.peer != NONE and half.peer not in self.recorded:
            return None  # nothing is known about it, and its rank is stuck in something older
        is_taken_back = waits_for_dropped_half(self.trace, half)
        paired = half.matched and half.partner_row != NONE and not is_taken_back
        if paired and self._is_served(half):
            return None  # some backends report completion only once somebody waits
        if half.matched and self._goes_on_by_itself(half):
            return None
        weak = half.row not in self.blocking and self._may_be_left_alone(half)
        place = replace(place_of(self.trace, half), weak=weak)
        if half.peer == NONE:
            place = self._from_anybody(place, half)
            return None if place.blind and older else place  # it shows for whom it waits
        if half.matched is False or (half.matched is None and half.peer in self.recorded):
            return replace(place, absent=(half.peer,))
        if half.matched is None:
            return replace(place, unknown=(half.peer,))
        never = differ_in_tag(self.trace, half)
        is_held_up = is_taken_back or (not never and self._is_held_up(half, held))
        return replace(place, behind=(half.peer,)) if is_held_up else place

    def _is_served(self, half: Half) -> bool:
        """Whether the partner is through with its half, as far as is known.

        An end that nobody has seen counts as one, except of a send to a device that has begun to
        receive and still does: what was sent has not come there.
        """
        if self.front.unfinished[half.partner_row] or differ_in_tag(self.trace, half):
            return False
        own = self.trace.records[half.row]
        signature = self.trace.signatures[int(own["signature"])]
        receives = own["started_ns"] > 0 and not half.is_send and not is_on_host(signature)
        return not (receives and end_is_unseen(self.trace, half.partner_row))

    def _from_anybody(self, place: Place, half: Half) -> Place:
        """The place with the ranks that might send what a receive from any source waits for."""
        group = self.trace.groups[half.group]
        owed = missing_senders(self.trace, half, self.bounds, self.recorded, self.hidden)
        others = tuple(r for r in group.ranks if r != half.rank)
        place = replace(
            place,
            absent=others if len(others) == 1 else tuple(owed.behind),
            unknown=tuple(owed.lost),
        )
        if not place.targets and others and all(r in self.oldest_row for r in others):
            # Whichever rank it is, each of them waits for something itself.
            place = replace(place, behind=others)
        return replace(place, blind=not place.targets)

    def _is_held_up(self, half: Half, held: Mapping[int, int]) -> bool:
        """Whether the partner, whose half is issued, cannot get to it."""
        if self._stands_before(half.peer, half.partner_row):
            return True
        own, its = held.get(self._batch_of(half)), held.get(self._batch_at(half.partner_row))
        if its is not None and (own is None or its < own):
            return True  # its batch waits for another rank
        process = self.processes.get(half.peer)
        if process is None:
            return False
        if process.state == "stopped":
            records = self.trace.records["created_ns"]
            both_ns = max(int(records[row]) for row in (half.row, half.partner_row) if row >= 0)
            return not had_stalled_before(self.trace, both_ns, process.beat_ns)
        return process.gone and process.end is not End.TORN_DOWN


def held_up_by_sends(
    places: list[Place], places_of: Mapping[int, list[int]], oldest_row: Mapping[int, int]
) -> dict[int, list[int]]:
    """Per rank held up by its sends, the places these keep it from; updates ``places`` accordingly.

    A partner that has reached a half which the rank issued after the send waits for the rank, and
    may in turn hold up another.
    """
    held: dict[int, list[int]] = {}
    towards: dict[int, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        if place.half is not None:
            towards[place.half.peer].append(index)
    found = True
    while found:
        found = False
        for rank, indexes in places_of.items():
            if rank in held:
                continue
            kept, send = _held_up(places, rank, indexes, oldest_row.get(rank, NONE), held)
            if send == NONE:
                continue
            held[rank], found = kept, True
            for index in towards[rank]:
                place = places[index]
                met = place.half is not None and place.half.partner_row > send
                if met and not place.targets:
                    places[index] = replace(place, behind=(rank,))
    return held


def _held_up(
    places: list[Place],
    rank: int,
    indexes: list[int],
    oldest: int,
    held: Collection[int],
) -> tuple[list[int], int]:
    """Places where a rank would wait but for earlier single sends, and the first of those sends.

    The rank waits for nobody at such a place and everybody has arrived. Since a device executes the
    send before later operations, the others wait for the rank. ``held``: ranks found held up so
    far; any of them may be waited for at the same place. ``([], -1)`` for none.
    """
    older = [i for i in indexes if (p := places[i]).weak and p.row < oldest and p.targets]
    if not older:
        return [], NONE
    strong = [i for i in indexes if not places[i].weak]
    # Sends that the rank issued after the half it waits in do not precede anything here.
    first = [i for i in strong if places[i].p2p and places[i].row == oldest]
    first = first or [i for i in strong if not (places[i].p2p and places[i].row > oldest)]
    for place in (places[i] for i in first):
        whole = bool(place.half and place.half.matched)
        come = {*place.waiters, *place.done, *place.behind}
        if (
            not set(place.targets).issubset(held)
            or place.blind
            or not (whole if place.p2p else come.issuperset(place.members))
        ):
            return [], NONE
    if not first:
        return [], NONE
    for index in first:
        place = places[index]
        others = tuple(r for r in place.waiters if r != rank)
        behind = (*place.behind, rank) if others else ()
        places[index] = replace(place, waiters=others, behind=behind)
    for index in older:
        places[index] = replace(places[index], weak=False)
    return first, min(places[index].row for index in older)
