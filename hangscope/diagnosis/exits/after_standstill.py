"""Exits after the job had stopped moving: whoever ends a hung job ends its ranks.

Ranks are killed one after another, by hand or by their watchdogs, and those not yet reached fail as
their connections close. None of these exits explains the hang that came before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hangscope.diagnosis.exits.stops import NOTICED_LATE_NS, TOGETHER_NS
from hangscope.diagnosis.graph.places import INIT, NEW_GROUP
from hangscope.diagnosis.graph.store_places import PREFIX
from hangscope.diagnosis.observability import end_is_unseen, unrecorded
from hangscope.diagnosis.processes.process_state import End, ProcessState, is_unseen
from hangscope.diagnosis.records.coverage import Bounds, rank_bounds
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.records.pace import last_moved_ns, standstill_s
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import Flag, RankFacts, Trace
from hangscope.trace.units import SECOND_NS

_OUTSIDE = (9, 15, 2, 1)
"""SIGKILL, SIGTERM, SIGINT, SIGHUP: sent from outside."""
_CLOSED = frozenset({"ConnectionResetError", "BrokenPipeError", "EOFError"})
"""What Python raises if the other end of a local pipe or socket is gone."""
_AT_ONE_MOMENT_NS = SECOND_NS // 10


def not_before_last_record(
    trace: Trace, processes: dict[int, ProcessState]
) -> dict[int, ProcessState]:
    """No rank ended before its last record, however old its last heartbeat is.

    A process that cannot run has no heartbeat: one that was stopped, or whose GIL was held, lived
    when a monitor last saw it, and perhaps as long as the last rank that was ended from outside.
    """
    if not any(process.gone and process.end_ns for process in processes.values()):
        return processes
    latest = dict(last_moved_ns(trace))
    unseen = {rank for rank in processes if is_unseen(trace.ranks[rank])}
    last_ns = max((processes[rank].end_ns for rank in unseen), default=0)
    for rank in unseen:
        if processes[rank].cannot_run:
            latest[rank] = max(last_ns, trace.ranks[rank].observed_ns)
    return {
        rank: replace(process, end_ns=latest[rank])
        if process.gone and process.end_ns and latest.get(rank, 0) > process.end_ns
        else process
        for rank, process in processes.items()
    }


def without_ends_after_standstill(
    trace: Trace, front: Frontiers, processes: dict[int, ProcessState]
) -> dict[int, ProcessState]:
    """The processes; a rank ended from outside after the job stood still has not failed.

    The first to be ended like this, alone and without having waited, remains a suspect: it may have
    been killed (for memory, say) in the long computation the others waited for. A stopped rank
    computes nothing.
    """
    latest = last_moved_ns(trace)
    if not latest or not any(h.end in (End.CRASHED, End.CLEAN) for h in processes.values()):
        return processes
    stood_ns = max(latest.values()) + int(standstill_s(trace) * SECOND_NS)
    bounds = rank_bounds(trace)
    ends = _Ends(trace, front, bounds, processes, stood_ns, unrecorded(trace))
    late = [rank for rank, process in processes.items() if ends.came_with_it(process)]
    first = min((processes[rank] for rank in late), key=lambda h: h.end_ns, default=None)
    if first is not None and ends.may_be_why(first, late):
        late.remove(first.rank)
    stopped = ends.handled_stops()
    left = {
        # Until then it was where its stack shows.
        rank: replace(
            processes[rank],
            stack=trace.ranks[rank].main_stack,
            phase=None if trace.ranks[rank].main_stack else processes[rank].phase,
        )
        for rank in stopped
    }
    ended = processes | left
    return ended | {
        rank: replace(ended[rank], end=End.TORN_DOWN, secondary=True) for rank in [*late, *stopped]
    }


@dataclass(frozen=True)
class _Ends:
    """How the ranks of a stalled job ended."""

    trace: Trace
    front: Frontiers
    bounds: Bounds
    processes: Mapping[int, ProcessState]
    stood_ns: int
    """Since when the job had stood still for longer than it ever pauses while moving."""
    unrecorded: frozenset[int]

    @cached_property
    def gave_up_ns(self) -> int:
        """When the first rank timed out; 0 if none did."""
        gave_up = [h.end_ns for h in self.processes.values() if h.secondary and _timed_out(h)]
        return min(filter(None, gave_up), default=0)

    @cached_property
    def silent_ns(self) -> int:
        """A rank not heard of since then was not stopped together with the last of the others."""
        newest_ns = max(process.end_ns for process in self.processes.values())
        return newest_ns - int(standstill_s(self.trace) * SECOND_NS)

    @cached_property
    def killed_ns(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """When signals from outside ended ranks."""
        killed = [h.end_ns for h in self.processes.values() if self._was_killed(h.rank)]
        return np.array(killed, np.int64)

    @cached_property
    def aborted(self) -> frozenset[int]:
        """Ranks that aborted without a message, as watchdogs end them; none if none of them may
        have been waiting for others."""
        found = {
            rank
            for rank, facts in self.trace.ranks.items()
            if facts.exit is not None
            and facts.exit.aborted
            and not (facts.exception is not None and facts.exception.is_main_thread)
        }
        waited = (self._may_have_waited(rank) or self._met_others(rank) for rank in found)
        return frozenset(found) if any(waited) else frozenset()

    def came_with_it(self, process: ProcessState) -> bool:
        """Whether an end came from outside, after the job had come to a standstill."""
        rank, facts = process.rank, self.trace.ranks[process.rank]
        unrecorded = rank in self.unrecorded
        if process.end is not End.CRASHED:
            return False
        aborted = rank in self.aborted
        outside = aborted or _from_outside(facts, unrecorded)
        if not (outside or self._lost_a_helper_with_others(process)):
            return False
        undated = aborted and facts.exit is not None and not facts.exit.at_ns
        if undated or process.end_ns >= self.stood_ns:
            return True
        # A rank whose connections had broken would not have timed out a moment later.
        undecided = unrecorded or is_unseen(facts)
        if undecided and 0 < self.gave_up_ns < process.end_ns + NOTICED_LATE_NS:
            return True
        # Next to a rank that left nothing, the end of a waiting rank is nobody's failure.
        return (
            is_unseen(facts)
            and self._waited_beside_lost(rank)
            and not (process.end_ns < self.silent_ns and self._over_elsewhere(rank))
        )

    def _lost_a_helper_with_others(self, process: ProcessState) -> bool:
        """Whether what closed its connection (a driver, a server) was killed with other ranks.

        Then the rank is killed itself before it exits, or no later than the others. A launcher
        reacts to a failure only after it has seen the process end.
        """
        exception = self.trace.ranks[process.rank].exception
        if exception is None or exception.type_name not in _CLOSED:
            return False
        apart_ns = np.abs(self.killed_ns - process.end_ns)
        return self._was_killed(process.rank) or bool((apart_ns <= _AT_ONE_MOMENT_NS).any())

    def may_be_why(self, first: ProcessState, late: Collection[int]) -> bool:
        """Whether the others may have waited for the first rank of those ended ``late``."""
        facts = self.trace.ranks[first.rank]
        others = [process for process in self.processes.values() if process is not first]
        if others and all(h.end is End.CLEAN and 0 < h.end_ns <= first.end_ns for h in others):
            return not self._lingered(first)  # all others had left: there was no standstill
        if first.rank in self.unrecorded or first.state == "stopped" or facts.finalized:
            return False
        at_once, aborted = first.end_ns + TOGETHER_NS, first.rank in self.aborted
        alike = [r for r in late if r != first.rank and (r in self.aborted) == aborted]
        if any(self.processes[r].end_ns <= at_once for r in alike):
            return False
        waited = self._was_waiting(first.rank) or self._waited_beside_lost(first.rank)
        return not (waited or self._lingered(first) or self._came_after_others(first))

    def _lingered(self, process: ProcessState) -> bool:
        """Whether it was killed long after its program had ended."""
        facts = self.trace.ranks[process.rank]
        if not facts.is_only_leaving or not facts.phases[-1].since_ns:
            return False
        over_ns = max(process.end_ns, facts.observed_ns) - facts.phases[-1].since_ns
        return over_ns >= self.trace.timeout_s * SECOND_NS

    def _came_after_others(self, first: ProcessState) -> bool:
        """Whether others had been ended, or had timed out, before.

        A rank ended after them is ended with them, however long that takes. A rank that still timed
        out after the last sign of a silent one had outlived nobody.
        """
        unseen = is_unseen(self.trace.ranks[first.rank])
        last_ns = first.end_ns + (NOTICED_LATE_NS if unseen else 0)
        return any(
            (h.end is End.TORN_DOWN and self._was_killed(h.rank) and h.end_ns < first.end_ns)
            or (_timed_out(h) and h.end_ns < last_ns)
            for h in self.processes.values()
            if h.end_ns >= self.stood_ns
        )

    def handled_stops(self) -> list[int]:
        """Ranks that handled Ctrl-C, or another request to stop, and exited as if they were done.

        That is so if all ranks are gone within seconds and another waiting rank exits in the same
        way or is ended from outside: nobody is done in the middle of a collective.
        """
        left = [
            r for r, h in self.processes.items() if h.end is End.CLEAN and h.end_ns >= self.stood_ns
        ]
        if not left or self.trace.missing_ranks:
            return []
        first = min((self.processes[rank] for rank in left), key=lambda h: (h.end_ns, h.rank))
        others = [process for process in self.processes.values() if process is not first]
        together = all(h.gone and abs(h.end_ns - first.end_ns) <= TOGETHER_NS for h in others)
        stopped = any(
            (h.end is End.CLEAN or self._was_signalled(h.rank)) and self._was_waiting(h.rank)
            for h in others
        )
        return left if together and stopped else []

    def _was_killed(self, rank: int) -> bool:
        """Whether a signal from outside ended it."""
        exit_ = self.trace.ranks[rank].exit
        return exit_ is not None and exit_.signal in _OUTSIDE

    def _was_signalled(self, rank: int) -> bool:
        """The same, unless that was a launcher's reaction to a failure."""
        facts = self.trace.ranks[rank]
        own = facts.exception is not None or (facts.exit is not None and facts.exit.by_launcher)
        return facts.was_interrupted or (self._was_killed(rank) and not own)

    def _was_waiting(self, rank: int) -> bool:
        """Whether a rank was in a collective, or its caller was in a send or receive."""
        front = self.front
        if bool((front.pending[front.rank == rank] > 0).any()):
            return True
        if rank not in self.bounds:
            return False
        newest = self.bounds[rank][1] - 1
        stood = int(self.trace.records["flags"][newest]) & int(Flag.BLOCKING | Flag.WAITED)
        return bool(front.unfinished[newest] and front.p2p[newest] and stood)

    def _over_elsewhere(self, rank: int) -> bool:
        """Whether everything a rank has unfinished is over elsewhere: it waited for nobody."""
        own = (self.front.rank == rank) & (self.front.pending > 0)
        return bool(own.any() and (self.front.pending <= self.front.ended)[own].all())

    def _waited_beside_lost(self, rank: int) -> bool:
        """Whether a rank may have waited for one that left nothing."""
        return bool(self.trace.missing_ranks) and self._may_have_waited(rank)

    def _may_have_waited(self, rank: int) -> bool:
        """Whether a rank's last operation is unfinished, or its completion could not be
        observed."""
        if self._was_waiting(rank) or rank not in self.bounds:
            return self._was_waiting(rank)
        newest = self.bounds[rank][1] - 1
        unfinished = self.front.unfinished[newest] and self.front.p2p[newest]
        return bool(unfinished) or end_is_unseen(self.trace, newest)

    def _met_others(self, rank: int) -> bool:
        """Whether a rank was last waiting for others in a rendezvous, or for a store key."""
        phases = self.trace.ranks[rank].phases
        last = phases[-1].name if phases else ""
        return last in (INIT, NEW_GROUP) or last.startswith(PREFIX)


def _from_outside(facts: RankFacts, unrecorded: bool) -> bool:
    """Whether nothing shows that the rank ended by itself."""
    exit_, exception = facts.exit, facts.exception
    if exception is not None and exception.is_main_thread:
        return exception.is_interrupt  # that is how SIGINT ends a program
    if exit_ is None or exit_.kind == "unknown":
        return True
    if exit_.kind == "oom":
        return False
    wordless = unrecorded or exit_.text == WITHOUT_A_WORD
    return exit_.signal in _OUTSIDE or (wordless and exit_.kind == "code")


def _timed_out(process: ProcessState) -> bool:
    """Whether a rank timed out waiting for others that were still there."""
    return process.failure.waited_in_vain
