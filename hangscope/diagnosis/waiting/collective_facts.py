"""What a rank's records and process say about one collective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hangscope.diagnosis.observability import counts_on, hidden_ranks, recorded_ranks
from hangscope.diagnosis.processes.process_state import ProcessState, in_communication
from hangscope.diagnosis.records.blocking_calls import blocks_caller
from hangscope.diagnosis.records.coverage import collective_row, rank_bounds
from hangscope.diagnosis.records.frontier import UNKNOWN, Bools, Frontiers, Ints
from hangscope.diagnosis.records.kinds import (
    comes_from_root,
    groups_with,
    is_one_sided,
    records_where,
    same_backend,
)
from hangscope.diagnosis.records.pace import standstill_s
from hangscope.trace.facts import STALE_HEARTBEATS
from hangscope.trace.model import Flag, State, Trace
from hangscope.trace.units import SECOND_NS


class CollectiveFacts:
    """Queries on one trace; ``row`` is the index of a record, or -1 for none."""

    def __init__(
        self, trace: Trace, front: Frontiers, processes: Mapping[int, ProcessState]
    ) -> None:
        self.trace = trace
        self.front = front
        self.processes = processes
        self.hidden = hidden_ranks(trace)
        self.recorded = recorded_ranks(trace)
        self.bounds = rank_bounds(trace)
        self.counting = counts_on(trace)
        self._over: dict[tuple[int, int], int] = {}
        self._blocking = blocks_caller(trace)
        self._one_sided = records_where(trace, is_one_sided)
        self._comes_from_root = records_where(trace, comes_from_root)
        self.one_sided_groups = groups_with(trace, self._one_sided & front.collective)
        """Groups with operations that some members may finish alone."""

    def knows_start(self, rank: int) -> bool:
        """Whether "no record" means that the rank issued nothing."""
        return rank in self.recorded and rank not in self.hidden

    def row_of(self, group: int, rank: int, seq: int) -> int:
        """The row of a rank's collective, given its sequence number in the group."""
        return collective_row(self.trace, self.front, self.bounds, group, rank, seq)

    def would_show_end(self, before: int, row: int) -> bool:
        """Whether an earlier operation on the same backend was seen to finish, so that the end of
        this one would have been seen as well. A group may have several backends.

        Of a graph's replay nothing shows the end but the next one.
        """
        if before < 0 or self.trace.records["state"][before] != int(State.COMPLETED):
            return False
        record = self.trace.records[before]
        if int(record["flags"]) & int(Flag.FROM_NCCL) and not record["completed_ns"]:
            return False
        return same_backend(self.trace, before, row)

    def needs_all(self, group: int, row: int) -> bool:
        """Whether the operation cannot finish on any member before every member has issued it (rule
        3)."""
        if group not in self.one_sided_groups:
            return True
        return row >= 0 and not self._one_sided[row]

    def first_unmet(self, group: int, rank: int, start: int, issued: Mapping[int, int]) -> int:
        """Number of the first operation from ``start`` on that the rank cannot finish; 0 for none.

        That is an operation that needs all members, or one whose root has not reached it.
        ``issued``: the last known number of each member.
        """
        low, high = self.bounds.get(rank, (0, 0))
        part = self.trace.records[low:high]
        later = (part["group"] == group) & (part["collective_seq"] >= start)
        rows = low + np.flatnonzero(later & self.front.collective[low:high])
        numbers = self.trace.records["collective_seq"]
        for row in rows.tolist():
            number = int(numbers[row])
            root = int(self.trace.records["root"][row])
            if self.needs_all(group, row) or (
                self._comes_from_root[row] and root in issued and issued[root] < number
            ):
                return number
        return 0

    def has_left(self, rank: int, row: int) -> bool:
        """Whether the rank's own stack shows that a blocking call has returned."""
        process = self.processes.get(rank)
        if (
            row < 0
            or process is None
            or not process.stack
            or process.gone
            or not self._blocking[row]
        ):
            return False
        facts = self.trace.ranks[rank]
        record = self.trace.records[row]
        if int(record["flags"]) & int(Flag.RETIRED) and record["state"] != int(State.COMPLETED):
            return False  # it left the call by an error, so what it needed has still not arrived
        sampled = max((t.sampled_ns for t in facts.threads if t.is_main), default=0)
        if sampled <= int(record["created_ns"]):
            return False
        return not any(in_communication(t.stack) for t in facts.threads) and not any(
            f.name == "backward" for f in process.stack
        )

    def outlived(self, rank: int, group: int, seq: int) -> bool:
        """Whether the rank's recorder still ran when it would have noted that its own part of what
        a peer has finished was over as well."""
        over_ns = self._over_ns(group, seq)
        facts = self.trace.ranks[rank]
        slack_ns = STALE_HEARTBEATS * (facts.heartbeat_interval_s or 1.0) * SECOND_NS
        return 0 < over_ns < facts.heartbeat_ns - slack_ns

    def _over_ns(self, group: int, seq: int) -> int:
        """When the last member noted that its part of a collective was over; 0 if unknown."""
        if (group, seq) not in self._over:
            records = self.trace.records
            here = (records["group"] == group) & (records["collective_seq"] == seq)
            noted = records["completed_ns"][here & self.front.collective]
            self._over[group, seq] = int(noted.max(initial=0))
        return self._over[group, seq]

    @cached_property
    def dates_ends(self) -> bool:
        """Whether completion times are recorded; Gloo's own recorder has none."""
        return bool((self.trace.records["completed_ns"] > 0).any())

    @cached_property
    def _standstill_ns(self) -> float:
        return standstill_s(self.trace) * 1e9

    def failed_with_others(self, rank: int, row: int) -> bool:
        """Whether a rank ended inside an operation through no fault of its own, while the job
        moved."""
        process = self.processes.get(rank)
        if process is None or row < 0 or not (process.gone and process.secondary):
            return False
        lasted_ns = process.end_ns - int(self.trace.records["created_ns"][row])
        return bool(process.end_ns) and lasted_ns < self._standstill_ns

    @cached_property
    def failed_last(self) -> set[int]:
        """Ranks whose newest record is a failed operation."""
        records = self.trace.records
        if not len(records):
            return set()
        ranks = records["rank"]
        last = np.append(np.flatnonzero(ranks[1:] != ranks[:-1]), len(records) - 1)
        rows = records[last]
        wrong = (rows["flags"] & int(Flag.FAILED) != 0) & (rows["completed_ns"] == 0)
        return set(rows["rank"][wrong].tolist())


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The members of a group about which anything is known, one row each in every column.

    The columns start as those of `Frontiers`; facts about a process modify them in place.
    """

    ranks: Ints
    enqueued: Ints
    completed: Ints
    pending: Ints
    rows: Ints
    """Rows of ``pending``, or -1."""
    began_ns: Ints
    finished: int
    """The newest collective that any member has finished; 0 for none."""

    @property
    def known(self) -> Bools:
        """Members for which it is known how much they have issued."""
        found: Bools = self.enqueued != UNKNOWN
        return found
