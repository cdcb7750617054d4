"""Ends that came after the job had stopped moving: whoever ends a job that hangs ends its ranks.

They are killed one after another, and those not reached yet fail as their connections close. None
of these ends explains the hang that came before.
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
from hangscope.diagnosis.processes.failure_messages import WAITED_IN_VAIN
from hangscope.diagnosis.processes.process_state import End, Host, is_unseen
from hangscope.diagnosis.records.coverage import Bounds, end_is_unseen, rank_bounds, told_of_only
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.records.kinds import is_one_sided, which
from hangscope.diagnosis.records.pace import last_moved_ns, standstill_s
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import Flag, RankFacts, Trace
from hangscope.trace.signals import SIGABRT

_OUTSIDE = (9, 15, 2, 1)
"""SIGKILL, SIGTERM, SIGINT, SIGHUP: sent by somebody else."""
_CLOSED = frozenset({"ConnectionResetError", "BrokenPipeError", "EOFError"})
"""What Python raises where the other end of a pipe or socket of the host has gone."""
_SECOND_NS = 1_000_000_000
_AT_ONE_MOMENT_NS = _SECOND_NS // 10


def not_before_last_record(trace: Trace, hosts: dict[int, Host]) -> dict[int, Host]:
    """Nobody has ended before the last thing it did, however old its last heartbeat is.

    The heart of a process that cannot run does not beat: one that was stopped, or whose GIL was
    held, may have lived as long as the last that was ended from outside.
    """
    if not any(host.gone and host.end_ns for host in hosts.values()):
        return hosts
    latest = dict(last_moved_ns(trace))
    unseen = {rank for rank in hosts if is_unseen(trace.ranks[rank])}
    last_ns = max((hosts[rank].end_ns for rank in unseen), default=0)
    for rank in unseen:
        if hosts[rank].cannot_run:
            latest[rank] = last_ns
    return {
        rank: replace(host, end_ns=latest[rank])
        if host.gone and host.end_ns and latest.get(rank, 0) > host.end_ns
        else host
        for rank, host in hosts.items()
    }


def without_ends_after_standstill(
    trace: Trace, front: Frontiers, hosts: dict[int, Host]
) -> dict[int, Host]:
    """The processes; who was ended from outside after the job stood still has not failed.

    A single rank that was ended so, and waited for nobody until then, stays a suspect: it may have
    been killed (for memory, say) in the long computation that the others waited for. One that was
    stopped computes nothing.
    """
    hosts = {rank: _over_before(trace, host) for rank, host in hosts.items()}
    latest = last_moved_ns(trace)
    if not latest or not any(host.end in (End.CRASHED, End.CLEAN) for host in hosts.values()):
        return hosts
    stood_ns = max(latest.values()) + int(standstill_s(trace) * _SECOND_NS)
    bounds = rank_bounds(trace)
    hosts = _without_who_left_as_told(trace, front, bounds, hosts, stood_ns)
    if not any(host.end is End.CRASHED for host in hosts.values()):
        return hosts
    hosts = _without_who_gave_up(trace, front, bounds, hosts, stood_ns)
    ends = _EndsOfStandstill(trace, front, bounds, hosts, stood_ns, frozenset(told_of_only(trace)))
    late = [rank for rank, host in hosts.items() if ends.came_with_it(host)]
    first = min((hosts[rank] for rank in late), key=lambda h: h.end_ns, default=None)
    if first is None or _others_had_left(hosts, first):
        return hosts
    if ends.may_be_why(first, late):
        late.remove(first.rank)
    ended = {r: replace(hosts[r], end=End.TORN_DOWN, secondary=True) for r in late}
    return {**hosts, **ended}


@dataclass(frozen=True)
class _EndsOfStandstill:
    """How ranks ended of a job that stood still."""

    trace: Trace
    front: Frontiers
    bounds: Bounds
    hosts: Mapping[int, Host]
    stood_ns: int
    """Since when the job had stood still for longer than it ever does while it moves."""
    unrecorded: frozenset[int]

    @cached_property
    def gave_up_ns(self) -> int:
        """When the first rank gave up waiting; 0 for none."""
        hosts = self.hosts.values()
        return min((h.end_ns for h in hosts if h.secondary and _in_vain(h) and h.end_ns), default=0)

    @cached_property
    def silent_ns(self) -> int:
        """Who was not heard of since then was not stopped together with the last of the others."""
        newest_ns = max(host.end_ns for host in self.hosts.values())
        return newest_ns - int(standstill_s(self.trace) * _SECOND_NS)

    @cached_property
    def killed_ns(self) -> list[int]:
        """When signals from outside ended ranks, the first of them first."""
        killed = (h for h in self.hosts.values() if _was_killed(self.trace.ranks[h.rank]))
        return sorted(host.end_ns for host in killed)

    def came_with_it(self, host: Host) -> bool:
        """Whether an end came from outside, and after the job had come to stand still."""
        rank, facts = host.rank, self.trace.ranks[host.rank]
        unrecorded = rank in self.unrecorded
        if host.end is not End.CRASHED:
            return False
        if not (_from_outside(facts, unrecorded) or self._lost_a_helper_with_others(host)):
            return False
        if host.end_ns >= self.stood_ns:
            return True
        gave_up_ns = self.gave_up_ns
        if unrecorded and 0 < gave_up_ns <= host.end_ns + _SECOND_NS:
            return True
        if not is_unseen(facts):
            return False
        # One whose connections had broken would not have given up in vain a moment later.
        if gave_up_ns > 0 and gave_up_ns - host.end_ns < NOTICED_LATE_NS:
            return True
        # Beside a rank that left nothing, the end of one that waited is nobody's failure.
        return self._waited_beside_lost(rank) and not (
            host.end_ns < self.silent_ns and _over_elsewhere(self.trace, self.front, rank)
        )

    def _lost_a_helper_with_others(self, host: Host) -> bool:
        """Whether what closed its connection (a driver, a server) was killed with other ranks.

        Then it is killed itself before it has left, or no later than the others. A launcher answers
        a failure once it has seen the process end.
        """
        exception = self.trace.ranks[host.rank].exception
        if exception is None or exception.type_name not in _CLOSED:
            return False
        if _was_killed(self.trace.ranks[host.rank]):
            return True
        since = bisect_left(self.killed_ns, host.end_ns - _AT_ONE_MOMENT_NS)
        return bisect_right(self.killed_ns, host.end_ns + _AT_ONE_MOMENT_NS) > since

    def may_be_why(self, first: Host, late: Iterable[int]) -> bool:
        """Whether the others may have waited for the first of those that were ended ``late``."""
        if first.rank in self.unrecorded or first.state == "stopped":
            return False
        at_once = first.end_ns + TOGETHER_NS
        if any(self.hosts[r].end_ns <= at_once for r in late if r != first.rank):
            return False
        if _was_waiting(self.trace, self.front, self.bounds, first.rank):
            return False
        return not self._waited_beside_lost(first.rank) and not self._came_after_others(first)

    def _waited_beside_lost(self, rank: int) -> bool:
        """Whether a rank may have waited for one that left nothing."""
        lost = bool(self.trace.missing_ranks)
        return lost and _may_have_waited(self.trace, self.front, self.bounds, rank)

    def _came_after_others(self, first: Host) -> bool:
        """Whether others had been ended, or had given up, before.

        Who is ended after them is ended with them, however long that takes. Who still waited in
        vain later than the last sign of one that fell silent had outlived nobody.
        """
        unseen = is_unseen(self.trace.ranks[first.rank])
        last_ns = first.end_ns + (NOTICED_LATE_NS if unseen else 0)
        return any(
            (host.end_ns < first.end_ns and _was_ended(self.trace, host))
            or (host.end_ns < last_ns and _in_vain(host))
            for host in self.hosts.values()
            if host.end_ns >= self.stood_ns
        )


def _over_before(trace: Trace, host: Host) -> Host:
    """Who is killed from outside long after its program was over is killed for being there."""
    facts = trace.ranks[host.rank]
    if host.end is not End.CRASHED or not facts.is_only_leaving or not _from_outside(facts, False):
        return host
    over_ns = max(host.end_ns, facts.observed_ns) - facts.phases[-1].since_ns
    if not facts.phases[-1].since_ns or over_ns < trace.timeout_s * _SECOND_NS:
        return host
    return replace(host, end=End.TORN_DOWN, secondary=True)


def _without_who_left_as_told(
    trace: Trace, front: Frontiers, bounds: Bounds, hosts: dict[int, Host], stood_ns: int
) -> dict[int, Host]:
    """Who catches Ctrl-C, or what else told the job to stop, leaves as if it were done.

    So it is where all ranks are gone within seconds, and another one that had waited leaves so as
    well, or was ended from outside: nobody is done in the middle of a collective.
    """
    left = {r for r, h in hosts.items() if h.end is End.CLEAN and h.end_ns >= stood_ns}
    if not left:
        return hosts
    first = min((hosts[rank] for rank in left), key=lambda h: (h.end_ns, h.rank))
    others = [host for host in hosts.values() if host is not first]
    together = all(h.gone and abs(h.end_ns - first.end_ns) <= TOGETHER_NS for h in others)
    told = any(
        _was_waiting(trace, front, bounds, host.rank)
        and (host.rank in left or _was_told(trace.ranks[host.rank]))
        for host in others
    )
    if not (together and told) or trace.missing_ranks:
        return hosts
    stacks = {rank: trace.ranks[rank].main_stack for rank in left}
    return hosts | {
        rank: replace(
            hosts[rank],
            end=End.TORN_DOWN,
            secondary=True,
            phase=None if stack else hosts[rank].phase,  # until then it was where its stack shows
            stack=stack,
        )
        for rank, stack in stacks.items()
    }


def _was_told(facts: RankFacts) -> bool:
    """Whether a signal from outside, and no launcher's answer to a failure, ended a rank."""
    exit_ = facts.exit
    outside = exit_ is not None and exit_.signal in _OUTSIDE and not exit_.by_launcher
    return facts.was_interrupted or (outside and facts.exception is None)


def _without_who_gave_up(
    trace: Trace, front: Frontiers, bounds: Bounds, hosts: dict[int, Host], stood_ns: int
) -> dict[int, Host]:
    """Watchdogs abort ranks whose wait they have given up, and then all others that hear of it.

    One that aborts before any that waited, or alone without having waited, has failed.
    """
    silent = {r: h for r, h in hosts.items() if _gave_up(trace, h, stood_ns)}
    waited_until_ns = [  # 0: nobody knows, and then no end is known to come before it
        exit_.at_ns
        for r in silent
        if (exit_ := trace.ranks[r].exit) is not None
        and (_may_have_waited(trace, front, bounds, r) or _in_a_phase(trace.ranks[r]))
    ]
    if not waited_until_ns:
        return hosts
    first_ns = min(waited_until_ns) - TOGETHER_NS
    gave_up = [r for r, h in silent.items() if h.end_ns >= first_ns]
    ended = {r: replace(hosts[r], end=End.TORN_DOWN, secondary=True) for r in gave_up}
    return {**hosts, **ended}


def _in_a_phase(facts: RankFacts) -> bool:
    """Whether what a rank did last was to wait for others to meet, or for a key of theirs."""
    last = facts.phases[-1].name if facts.phases else ""
    return last in (INIT, NEW_GROUP) or last.startswith(PREFIX)


def _gave_up(trace: Trace, host: Host, stood_ns: int) -> bool:
    """Whether a rank aborted itself without a word once nothing moved, or nobody knows when.

    So a watchdog ends a rank.
    """
    facts = trace.ranks[host.rank]
    exit_, exception = facts.exit, facts.exception
    if host.end is not End.CRASHED or exit_ is None:
        return False
    if exit_.signal != SIGABRT or (exception is not None and exception.is_main_thread):
        return False
    return not exit_.at_ns or host.end_ns >= stood_ns


def _others_had_left(hosts: dict[int, Host], first: Host) -> bool:
    """Whether all others had ended well before: then nothing stood still that was swept away."""
    others = [host for host in hosts.values() if host is not first]
    return bool(others) and all(
        host.end is End.CLEAN and 0 < host.end_ns <= first.end_ns for host in others
    )


def _from_outside(facts: RankFacts, unrecorded: bool) -> bool:
    """Whether nothing tells that the rank ended by itself."""
    exit_, exception = facts.exit, facts.exception
    if exception is not None and exception.is_main_thread:
        return exception.is_interrupt  # so SIGINT ends a program
    if exit_ is None or exit_.kind == "unknown":
        return True
    if exit_.kind == "oom":
        return False
    wordless = unrecorded or exit_.text == WITHOUT_A_WORD
    return exit_.signal in _OUTSIDE or (wordless and exit_.kind == "code")


def _was_killed(facts: RankFacts) -> bool:
    """Whether a signal from outside has ended it."""
    return facts.exit is not None and facts.exit.signal in _OUTSIDE


def _was_ended(trace: Trace, host: Host) -> bool:
    """Whether somebody saw that a rank was ended by a signal from outside or by its watchdog."""
    exit_ = trace.ranks[host.rank].exit
    if exit_ is None or exit_.kind != "signal" or exit_.signal is None:
        return False
    return host.end is End.TORN_DOWN and exit_.signal in (*_OUTSIDE, SIGABRT)


def _in_vain(host: Host) -> bool:
    """Whether a rank gave up waiting for others that were still there."""
    return bool(WAITED_IN_VAIN.search(host.end_text))


def _was_waiting(trace: Trace, front: Frontiers, bounds: Bounds, rank: int) -> bool:
    """Whether a rank was in a collective, or its caller stood in a send or receive."""
    if bool((front.pending[front.rank == rank] > 0).any()):
        return True
    if rank not in bounds:
        return False
    newest = bounds[rank][1] - 1
    stood = int(trace.records["flags"][newest]) & int(Flag.BLOCKING | Flag.WAITED)
    return bool(front.unfinished[newest] and front.p2p[newest] and stood)


def _over_elsewhere(trace: Trace, front: Frontiers, rank: int) -> bool:
    """Whether all that a rank has unfinished is over for somebody else: it waited for nobody."""
    own = np.flatnonzero((front.rank == rank) & (front.pending > 0))
    rows = front.pending_row[own]
    alone = rows < 0
    alone[~alone] = which(trace, is_one_sided, rows[~alone])
    furthest = [int(front.completed[front.group == front.group[pair]].max()) for pair in own]
    return bool(len(own)) and bool(np.all(~alone & (front.pending[own] <= furthest)))


def _may_have_waited(trace: Trace, front: Frontiers, bounds: Bounds, rank: int) -> bool:
    """Whether what a rank did last is unfinished, or nobody could see whether it is."""
    if _was_waiting(trace, front, bounds, rank):
        return True
    if rank not in bounds:
        return False
    newest = bounds[rank][1] - 1
    if front.unfinished[newest] and front.p2p[newest]:
        return True
    return end_is_unseen(trace, newest)
