"""The shared state of all steps of the diagnosis, with small queries on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from hangscope.diagnosis.graph.places import Place, Waits
from hangscope.diagnosis.groups.dimensions import kinds_of_groups
from hangscope.diagnosis.knowledge.streams import Streams
from hangscope.diagnosis.model import GroupRef, LastOperation
from hangscope.diagnosis.observability import (
    cut_off,
    hidden_ranks,
    is_text_alone,
    of_text,
    partly_recorded,
    unfinished_alone,
    unreadable,
    unrecorded,
)
from hangscope.diagnosis.processes.active_thread import group_stack
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.agreement import family
from hangscope.diagnosis.records.coverage import (
    collective_row,
    gaps,
    known_ranks,
    overrun_ranks,
    rank_bounds,
    unlisted,
    without_order,
)
from hangscope.diagnosis.records.frontier import Frontiers, Ints
from hangscope.diagnosis.records.pairing import Half, pending_halves
from hangscope.trace.model import NONE, Flag, Signature, Stack, Trace, flagged
from hangscope.trace.units import SECOND_NS

_NO_TIME_S = 1e-6
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Inferred:
    """What had to be inferred to make the ranks of a trace comparable."""

    members: frozenset[int] = frozenset()
    """Groups whose members no source lists completely."""
    clocks: bool = False
    """Clocks that disagreed between hosts were aligned."""
    halves: frozenset[int] = frozenset()
    """Rows of sends and receives that count as unfinished because the other side issued fewer."""


def _of_trace(function: Callable[[Trace], _T]) -> cached_property[_T]:
    """What a function tells of the trace, worked out once."""
    return cached_property(lambda context: function(context.trace))


@dataclass(frozen=True)
class Context:
    """A trace and what was derived from it.

    Ranks are global, groups are indices into `Trace.groups`, rows are indices into `Trace.records`;
    -1 means none of them. Times ending in ``_ns`` are nanoseconds since the epoch (0: unknown),
    those ending in ``_s`` are durations in seconds. Properties are computed once, on first use.
    """

    trace: Trace
    front: Frontiers
    processes: dict[int, ProcessState]
    waits: Waits
    inferred: Inferred = Inferred()

    bounds = _of_trace(rank_bounds)
    known_ranks = _of_trace(known_ranks)
    gaps = _of_trace(gaps)
    unlisted = _of_trace(unlisted)
    without_order = _of_trace(without_order)
    kinds = _of_trace(kinds_of_groups)
    unreadable = _of_trace(unreadable)
    unrecorded = _of_trace(unrecorded)
    of_text = _of_trace(of_text)
    partly_recorded = _of_trace(partly_recorded)
    unfinished_alone = _of_trace(unfinished_alone)
    hidden = _of_trace(hidden_ranks)

    @cached_property
    def from_logs_alone(self) -> bool:
        """Whether no operation was recorded: all were inferred from text."""
        flags, synthetic = self.trace.records["flags"], int(Flag.SYNTHETIC)
        if not len(flags):
            return is_text_alone(self.trace)
        return bool((flags[:1] & synthetic).all() and (flags & synthetic).all())

    def is_observed(self, rank: int) -> bool:
        """Whether anything is known about what the process does or how it ended."""
        process = self.processes.get(rank)
        return process is not None and process.is_observed

    @cached_property
    def overrun(self) -> frozenset[int]:
        """Ranks whose oldest unfinished operation may have been overwritten in the ring."""
        return overrun_ranks(self.trace, self.front)

    @cached_property
    def groups_alike(self) -> dict[tuple[object, int], list[int]]:
        """Indices of the groups of each kind and size, in order."""
        alike: dict[tuple[object, int], list[int]] = defaultdict(list)
        for index, (kind, group) in enumerate(zip(self.kinds, self.trace.groups, strict=True)):
            alike[kind, len(group.ranks)].append(index)
        return dict(alike)

    @cached_property
    def _collectives_by_group(self) -> tuple[Ints, Ints]:
        """Rows of all collectives, sorted by group, and the offset of each group."""
        groups = self.trace.records["group"]
        rows = np.flatnonzero(self.front.collective)
        rows = rows[np.argsort(groups[rows], kind="stable")]
        starts = np.searchsorted(groups[rows], np.arange(len(self.trace.groups) + 1))
        return rows, starts

    def collectives_of(self, group: int) -> Ints:
        """Rows of a group's collectives, rank by rank, each rank's in order of issue."""
        rows, starts = self._collectives_by_group
        return rows[starts[group] : starts[group + 1]]

    def rows_at(self, group: int, seq: int) -> Ints:
        """Rows of the members that issued a collective, rank by rank."""
        rows = self.collectives_of(group)
        found: Ints = rows[self.trace.records["collective_seq"][rows] == seq]
        return found

    @cached_property
    def streams(self) -> Streams:
        """What each rank has issued, comparable between ranks."""
        return Streams(self)

    @cached_property
    def families(self) -> list[str]:
        """For each signature its operation; interchangeable names count as one."""
        return [family(s.op) for s in self.trace.signatures]

    @cached_property
    def on_record(self) -> frozenset[int]:
        """Ranks of which something tells what they issued."""
        return frozenset(self.trace.ranks) - self.unrecorded

    def left_nothing(self, rank: int) -> bool:
        """Whether nothing tells what the rank issued, and what else is known is that it lived."""
        process = self.processes.get(rank)
        if process is None or rank not in self.unrecorded:
            return process is None
        return process.end in (End.TORN_DOWN, End.UNKNOWN) and not process.cannot_run

    @cached_property
    def pairs_of_rank(self) -> dict[int, Ints]:
        """Indices of each rank's (rank, group) pairs in the frontiers."""
        return self.front.of_rank()

    @cached_property
    def lists_in_part(self) -> bool:
        """Whether ranks recorded unfinished operations alone, and not because their file is cut."""
        return bool(self.unfinished_alone - cut_off(self.trace))

    @cached_property
    def blank(self) -> frozenset[int]:
        """Ranks whose dumps, which list only unfinished entries, have no entry and no counter.

        They waited for nothing when they were dumped, whenever that was.
        """
        if not self.lists_in_part:
            return frozenset()  # otherwise they list everything a rank ever issued
        heard_from = {*self.bounds, *self.front.rank.tolist()}
        return frozenset(r for r in self.trace.ranks.keys() & self.on_record if r not in heard_from)

    @cached_property
    def pending_halves(self) -> list[Half]:
        """Every unfinished send or receive."""
        return pending_halves(self.trace, self.front, self.hidden)

    @cached_property
    def _halves_by_peer(self) -> tuple[Ints, Ints]:
        """Rows of all sends and receives sorted by the peer they name, and those peers."""
        batch = flagged(self.trace.records["flags"], Flag.COALESCED_BATCH)
        rows = np.flatnonzero(self.front.p2p & ~batch)
        peers = self.trace.records["peer"][rows]
        order = np.argsort(peers, kind="stable")
        return rows[order], peers[order]

    def halves_around(self, rank: int) -> Ints:
        """Rows of the sends and receives that a rank issued or that name it as their peer."""
        low, high = self.bounds.get(rank, (0, 0))
        batch = flagged(self.trace.records["flags"][low:high], Flag.COALESCED_BATCH)
        own = low + np.flatnonzero(self.front.p2p[low:high] & ~batch)
        rows, peers = self._halves_by_peer
        first, last = np.searchsorted(peers, [rank, rank + 1])
        return np.union1d(own, rows[first:last])

    @cached_property
    def newest_ns(self) -> int:
        """When anything last happened in the job."""
        records = self.trace.records
        if not len(records):
            return 0
        return int(max(records["created_ns"].max(), records["completed_ns"].max()))

    def now_ns(self, rank: int) -> int:
        """The moment up to which the rank is known to have been silent."""
        facts = self.trace.ranks.get(rank)
        process = self.processes.get(rank)
        if process is not None and process.gone and process.end_ns:
            return process.end_ns
        told_ns = facts.observed_ns if facts is not None else 0
        if self.trace.live:
            # Another node's newest report is as old as the last change there, and what it did not
            # report as finished is still going on. Using each report's own time would give waits
            # that began together different lengths. Only a clock that runs ahead gives a time after
            # the present.
            return max(told_ns, self.trace.observed_ns)
        return told_ns or self.trace.observed_ns

    def age_s(self, rank: int, since_ns: int) -> float | None:
        """Seconds from ``since_ns`` until `now_ns`; None if either is unknown."""
        now = self.now_ns(rank)
        if not since_ns or not now or now < since_ns:
            return None
        return (now - since_ns) / SECOND_NS

    def shown_age_s(self, rank: int, since_ns: int) -> float | None:
        """`age_s` for a reader; None if nothing later is on record.

        A dump whose date cannot be its own was written at an unknown time after its last record.
        """
        age = self.age_s(rank, since_ns)
        return age if age is not None and age > _NO_TIME_S else None

    def first_still_running(self, ranks: Sequence[int]) -> int:
        """The first of these ranks that has not ended, else the first.

        A rank that ended waited until then; the others may still be waiting.
        """
        return next(
            (r for r in ranks if r in self.processes and not self.processes[r].gone), ranks[0]
        )

    def longest_wait_s(self, places: Iterable[Place]) -> float:
        """The longest wait (s) of any rank at these places; 0 if unknown."""
        ages = [self.age_s(rank, place.began_ns) for place in places for rank in place.waiters]
        return max((age for age in ages if age is not None), default=0.0)

    def blocked_s(self, place: Place) -> float:
        """For how long (s) the place has been blocked; 0 if unknown.

        A clock that runs ahead may date the last arrival after now. The first arrival counts then.
        """
        for since_ns in (place.stands_since_ns, place.began_ns):
            ages = [self.age_s(rank, since_ns) for rank in place.waiters]
            if any(age is not None for age in ages):
                return max(age for age in ages if age is not None)
        return 0.0

    def last_row(self, rank: int) -> int:
        """The last record of a rank, or -1."""
        low, high = self.bounds.get(rank, (0, 0))
        return high - 1 if high > low else NONE

    def signature(self, row: int) -> Signature | None:
        """The operation of a record; None if it is not on record."""
        index = int(self.trace.records["signature"][row]) if row >= 0 else NONE
        return self.trace.signatures[index] if index >= 0 else None

    def stack(self, row: int) -> Stack:
        """The call stack of a record, or an empty one."""
        if row < 0:
            return ()
        index = int(self.trace.records["stack"][row])
        return self.trace.stacks[index] if 0 <= index < len(self.trace.stacks) else ()

    def last_operation(self, rank: int) -> LastOperation | None:
        """The operation that the rank issued last, from its records or else from its counters."""
        row = self.last_row(rank)
        if row >= 0:
            record = self.trace.records[row]
            signature = self.signature(row)
            group = self.trace.groups[int(record["group"])]
            seq = int(record["p2p_seq"] if self.front.p2p[row] else record["collective_seq"])
            return LastOperation(group.name, seq, signature.op if signature else "")
        pairs = self.pairs_of_rank.get(rank)
        if pairs is None or not len(pairs):
            return None
        best = int(pairs[np.argmax(self.front.enqueued[pairs])])
        if self.front.enqueued[best] <= 0:
            return None
        group = self.trace.groups[int(self.front.group[best])]
        return LastOperation(group.name, int(self.front.enqueued[best]), "")

    def row_of(self, group: int, rank: int, seq: int) -> int:
        """The row of a rank's collective, given its sequence number in the group, or -1."""
        return collective_row(self.trace, self.front, self.bounds, group, rank, seq)

    def rows_in(self, rank: int, **columns: int) -> Ints:
        """Rows of a rank's records with these values, as of ``group`` or ``peer``, in order."""
        low, high = self.bounds.get(rank, (0, 0))
        part = self.trace.records[low:high]
        here = np.ones(len(part), bool)
        for name, value in columns.items():
            here &= part[name] == value
        found: Ints = low + np.flatnonzero(here)
        return found

    def last_in_group(self, rank: int, group: int) -> tuple[int, int]:
        """Number and row (or -1) of the rank's last collective in a group; (0, -1) if none."""
        rows = self.rows_in(rank, group=group)
        rows = rows[self.front.collective[rows]]
        if len(rows):
            return int(self.trace.records["collective_seq"][rows[-1]]), int(rows[-1])
        for pair in self.pairs_of_rank.get(rank, ()):
            if self.front.group[pair] == group:
                return max(int(self.front.enqueued[pair]), 0), NONE
        return 0, NONE

    def stack_in(self, rank: int, group: int) -> Stack:
        """Where the rank is instead of continuing in a group: usually its own stack."""
        process, facts = self.processes.get(rank), self.trace.ranks.get(rank)
        stack = process.stack if process is not None else ()
        if process is None or facts is None or group < 0:
            return stack
        if process.end is End.CLEAN or facts.exception is not None:
            return stack  # unlike a killed rank, it did not end where it hung
        _, row = self.last_in_group(rank, group)
        newest = self.last_row(rank)
        if row < 0 or newest < 0:
            return stack
        threads = self.trace.records["thread"]
        return group_stack(facts, int(threads[row]), int(threads[newest])) or stack

    def process_in(self, rank: int, group: int) -> ProcessState | None:
        """The rank's process, with the stack that shows why it does not continue in a group."""
        process = self.processes.get(rank)
        return None if process is None else process.in_thread(self.stack_in(rank, group))

    def group_ref(self, group: int, members: Iterable[int] = ()) -> GroupRef | None:
        """The group in the form that a report shows."""
        if not 0 <= group < len(self.trace.groups):
            return None
        found = self.trace.groups[group]
        return GroupRef(found.name, found.desc, found.ranks or tuple(sorted(members)))

    def place_op(self, place: Place) -> str:
        """The operation that ranks wait for at a place."""
        if place.phase:
            return place.phase
        signature = self.signature(place.row)
        if signature is not None:
            return signature.op
        for claim in self.trace.claims:
            if claim.op and claim.group == place.group and claim.seq == place.seq:
                return claim.op
        return "collective"
