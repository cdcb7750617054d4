"""Exits after the job had stopped moving: whoever ends a hung job ends its ranks.

Ranks are killed one after another, and those not yet reached fail as their connections close. None
of these exits explains the hang that came before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hangscope.diagnosis.exits.external_stop import NOTICED_LATE_NS, TOGETHER_NS
from hangscope.diagnosis.graph.places import INIT, NEW_GROUP
from hangscope.diagnosis.graph.store_places import PREFIX
from hangscope.diagnosis.processes.process_state import End, ProcessState, is_unseen
from hangscope.diagnosis.records.coverage import (
    Bounds,
    end_is_unseen,
    known_only_from_journal,
    rank_bounds,
)
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.records.kinds import is_one_sided, records_where
from hangscope.diagnosis.records.pace import last_moved_ns, standstill_s
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import Flag, RankFacts, Trace
from hangscope.trace.signals import SIGABRT
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

    A single rank that was ended like this without having waited remains a suspect: it may have been
    killed (for memory, say) in the long computation the others waited for. A stopped rank computes
    nothing.
    """
    processes = {rank: _killed_for_lingering(trace, process) for rank, process in processes.items()}
    latest = last_moved_ns(trace)
    if not latest or not any(
        process.end in (End.CRASHED, End.CLEAN) for process in processes.values()
    ):
        return processes
    stood_ns = max(latest.values()) + int(standstill_s(trace) * SECOND_NS)
    bounds = rank_bounds(trace)
    processes = _without_handled_stops(trace, front, bounds, processes, stood_ns)
    if not any(process.end is End.CRASHED for process in processes.values()):
        return processes
    processes = _without_who_gave_up(trace, front, bounds, processes, stood_ns)
    ends = _EndsOfStandstill(
        trace, front, bounds, processes, stood_ns, frozenset(known_only_from_journal(trace))
    )
    late = [rank for rank, process in processes.items() if ends.came_with_it(process)]
    first = min((processes[rank] for rank in late), key=lambda h: h.end_ns, default=None)
    if first is None or _others_had_left(processes, first):
        return processes
    if ends.may_be_why(first, late):
        late.remove(first.rank)
    ended = {r: replace(processes[r], end=End.TORN_DOWN, secondary=True) for r in late}
    return {**processes, **ended}


@dataclass(frozen=True)
class _EndsOfStandstill:
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
        processes = self.processes.values()
        return min(
            (h.end_ns for h in processes if h.secondary and _timed_out(h) and h.end_ns), default=0
        )

    @cached_property
    def silent_ns(self) -> int:
        """A rank not heard of since then was not stopped together with the last of the others."""
        newest_ns = max(process.end_ns for process in self.processes.values())
        return newest_ns - int(standstill_s(self.trace) * SECOND_NS)

    @cached_property
    def killed_ns(self) -> list[int]:
        """When signals from outside ended ranks, earliest first."""
        killed = (h for h in self.processes.values() if _was_killed(self.trace.ranks[h.rank]))
        return sorted(process.end_ns for process in killed)

    def came_with_it(self, process: ProcessState) -> bool:
        """Whether an end came from outside, after the job had come to a standstill."""
        rank, facts = process.rank, self.trace.ranks[process.rank]
        unrecorded = rank in self.unrecorded
        if process.end is not End.CRASHED:
            return False
        if not (_from_outside(facts, unrecorded) or self._lost_a_helper_with_others(process)):
            return False
        if process.end_ns >= self.stood_ns:
            return True
        gave_up_ns = self.gave_up_ns
        if unrecorded and 0 < gave_up_ns <= process.end_ns + SECOND_NS:
            return True
        if not is_unseen(facts):
            return False
        # A rank whose connections had broken would not have timed out a moment later.
        if gave_up_ns > 0 and gave_up_ns - process.end_ns < NOTICED_LATE_NS:
            return True
        # Next to a rank that left nothing, the end of a waiting rank is nobody's failure.
        return self._waited_beside_lost(rank) and not (
            process.end_ns < self.silent_ns and _over_elsewhere(self.trace, self.front, rank)
        )

    def _lost_a_helper_with_others(self, process: ProcessState) -> bool:
        """Whether what closed its connection (a driver, a server) was killed with other ranks.

        Then the rank is killed itself before it exits, or no later than the others. A launcher
        reacts to a failure only after it has seen the process end.
        """
        exception = self.trace.ranks[process.rank].exception
        if exception is None or exception.type_name not in _CLOSED:
            return False
        if _was_killed(self.trace.ranks[process.rank]):
            return True
        since = bisect_left(self.killed_ns, process.end_ns - _AT_ONE_MOMENT_NS)
        return bisect_right(self.killed_ns, process.end_ns + _AT_ONE_MOMENT_NS) > since

    def may_be_why(self, first: ProcessState, late: Iterable[int]) -> bool:
        """Whether the others may have waited for the first rank of those ended ``late``."""
        if first.rank in self.unrecorded or first.state == "stopped":
            return False
        if self.trace.ranks[first.rank].finalized:
            return False  # whatever it computed, the others had lost it when it left its groups
        at_once = first.end_ns + TOGETHER_NS
        if any(self.processes[r].end_ns <= at_once for r in late if r != first.rank):
            return False
        if _was_waiting(self.trace, self.front, self.bounds, first.rank):
            return False
        return not self._waited_beside_lost(first.rank) and not self._came_after_others(first)

    def _waited_beside_lost(self, rank: int) -> bool:
        """Whether a rank may have waited for one that left nothing."""
        lost = bool(self.trace.missing_ranks)
        return lost and _may_have_waited(self.trace, self.front, self.bounds, rank)

    def _came_after_others(self, first: ProcessState) -> bool:
        """Whether others had been ended, or had timed out, before.

        A rank ended after them is ended with them, however long that takes. A rank that still timed
        out after the last sign of a silent one had outlived nobody.
        """
        unseen = is_unseen(self.trace.ranks[first.rank])
        last_ns = first.end_ns + (NOTICED_LATE_NS if unseen else 0)
        return any(
            (process.end_ns < first.end_ns and _was_ended(self.trace, process))
            or (process.end_ns < last_ns and _timed_out(process))
            for process in self.processes.values()
            if process.end_ns >= self.stood_ns
        )


def _killed_for_lingering(trace: Trace, process: ProcessState) -> ProcessState:
    """A rank killed from outside long after its program ended was killed only for lingering."""
    facts = trace.ranks[process.rank]
    if (
        process.end is not End.CRASHED
        or not facts.is_only_leaving
        or not _from_outside(facts, False)
    ):
        return process
    over_ns = max(process.end_ns, facts.observed_ns) - facts.phases[-1].since_ns
    if not facts.phases[-1].since_ns or over_ns < trace.timeout_s * SECOND_NS:
        return process
    return replace(process, end=End.TORN_DOWN, secondary=True)


def _without_handled_stops(
    trace: Trace,
    front: Frontiers,
    bounds: Bounds,
    processes: dict[int, ProcessState],
    stood_ns: int,
) -> dict[int, ProcessState]:
    """A rank that handles Ctrl-C, or another request to stop, exits as if it were done.

    That is so if all ranks are gone within seconds and another waiting rank exits in the same way
    or is ended from outside: nobody is done in the middle of a collective.
    """
    left = {r for r, h in processes.items() if h.end is End.CLEAN and h.end_ns >= stood_ns}
    if not left:
        return processes
    first = min((processes[rank] for rank in left), key=lambda h: (h.end_ns, h.rank))
    others = [process for process in processes.values() if process is not first]
    together = all(h.gone and abs(h.end_ns - first.end_ns) <= TOGETHER_NS for h in others)
    others_stopped = any(
        _was_waiting(trace, front, bounds, process.rank)
        and (process.rank in left or _was_signalled(trace.ranks[process.rank]))
        for process in others
    )
    if not (together and others_stopped) or trace.missing_ranks:
        return processes
    stacks = {rank: trace.ranks[rank].main_stack for rank in left}
    return processes | {
        rank: replace(
            processes[rank],
            end=End.TORN_DOWN,
            secondary=True,
            phase=None
            if stack
            else processes[rank].phase,  # until then it was where its stack shows
            stack=stack,
        )
        for rank, stack in stacks.items()
    }


def _was_signalled(facts: RankFacts) -> bool:
    """Whether a signal from outside ended a rank, rather than a launcher's reaction to a
    failure."""
    exit_ = facts.exit
    outside = exit_ is not None and exit_.signal in _OUTSIDE and not exit_.by_launcher
    return facts.was_interrupted or (outside and facts.exception is None)


def _without_who_gave_up(
    trace: Trace,
    front: Frontiers,
    bounds: Bounds,
    processes: dict[int, ProcessState],
    stood_ns: int,
) -> dict[int, ProcessState]:
    """Watchdogs abort ranks whose wait timed out, and then all others that hear of it.

    A rank that aborts before any waiting one, or alone without having waited, has failed.
    """
    silent = {r: h for r, h in processes.items() if _gave_up(trace, h, stood_ns)}
    waited_until_ns = [  # 0: unknown; then no end is known to precede it
        exit_.at_ns
        for r in silent
        if (exit_ := trace.ranks[r].exit) is not None
        and (_may_have_waited(trace, front, bounds, r) or _in_a_phase(trace.ranks[r]))
    ]
    if not waited_until_ns:
        return processes
    first_ns = min(waited_until_ns) - TOGETHER_NS
    gave_up = [r for r, h in silent.items() if h.end_ns >= first_ns]
    ended = {r: replace(processes[r], end=End.TORN_DOWN, secondary=True) for r in gave_up}
    return {**processes, **ended}


def _in_a_phase(facts: RankFacts) -> bool:
    """Whether a rank was last waiting for others in a rendezvous, or for a store key."""
    last = facts.phases[-1].name if facts.phases else ""
    return last in (INIT, NEW_GROUP) or last.startswith(PREFIX)


def _gave_up(trace: Trace, process: ProcessState, stood_ns: int) -> bool:
    """Whether a rank aborted itself without a message once nothing moved, or at an unknown time.

    That is how a watchdog ends a rank.
    """
    facts = trace.ranks[process.rank]
    exit_, exception = facts.exit, facts.exception
    if process.end is not End.CRASHED or exit_ is None:
        return False
    if not exit_.aborted or (exception is not None and exception.is_main_thread):
        return False
    return not exit_.at_ns or process.end_ns >= stood_ns


def _others_had_left(processes: dict[int, ProcessState], first: ProcessState) -> bool:
    """Whether all others had ended well before: then there was no standstill to clean up."""
    others = [process for process in processes.values() if process is not first]
    return bool(others) and all(
        process.end is End.CLEAN and 0 < process.end_ns <= first.end_ns for process in others
    )


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


def _was_killed(facts: RankFacts) -> bool:
    """Whether a signal from outside ended it."""
    return facts.exit is not None and facts.exit.signal in _OUTSIDE


def _was_ended(trace: Trace, process: ProcessState) -> bool:
    """Whether it was observed that an outside signal or its watchdog ended the rank."""
    exit_ = trace.ranks[process.rank].exit
    if exit_ is None or exit_.kind != "signal" or exit_.signal is None:
        return False
    return process.end is End.TORN_DOWN and exit_.signal in (*_OUTSIDE, SIGABRT)


def _timed_out(process: ProcessState) -> bool:
    """Whether a rank timed out waiting for others that were still there."""
    return process.failure.waited_in_vain


def _was_waiting(trace: Trace, front: Frontiers, bounds: Bounds, rank: int) -> bool:
    """Whether a rank was in a collective, or its caller was in a send or receive."""
    if bool((front.pending[front.rank == rank] > 0).any()):
        return True
    if rank not in bounds:
        return False
    newest = bounds[rank][1] - 1
    stood = int(trace.records["flags"][newest]) & int(Flag.BLOCKING | Flag.WAITED)
    return bool(front.unfinished[newest] and front.p2p[newest] and stood)


def _over_elsewhere(trace: Trace, front: Frontiers, rank: int) -> bool:
    """Whether everything a rank has unfinished is over elsewhere: it waited for nobody."""
    own = np.flatnonzero((front.rank == rank) & (front.pending > 0))
    rows = front.pending_row[own]
    alone = rows < 0
    alone[~alone] = records_where(trace, is_one_sided, rows[~alone])
    furthest = [int(front.completed[front.group == front.group[pair]].max()) for pair in own]
    return bool(len(own)) and bool(np.all(~alone & (front.pending[own] <= furthest)))


def _may_have_waited(trace: Trace, front: Frontiers, bounds: Bounds, rank: int) -> bool:
    """Whether a rank's last operation is unfinished, or its completion could not be observed."""
    if _was_waiting(trace, front, bounds, rank):
        return True
    if rank not in bounds:
        return False
    newest = bounds[rank][1] - 1
    if front.unfinished[newest] and front.p2p[newest]:
        return True
    return end_is_unseen(trace, newest)
