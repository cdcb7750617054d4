"""Ends that came after the job had stopped moving: whoever ends a job that hangs ends its ranks.

They are killed one after another, and those not reached yet fail as their connections close. None
of these ends explains the hang that came before.
"""

from __future__ import annotations

from dataclasses import replace
from signal import SIGABRT

import numpy as np

from hangscope.diagnosis.ends.killed_together import NOTICED_LATE_NS, TOGETHER_NS
from hangscope.diagnosis.graph.places import INIT, NEW_GROUP
from hangscope.diagnosis.graph.stores import PREFIX
from hangscope.diagnosis.processes.failures import WAITED_IN_VAIN
from hangscope.diagnosis.processes.host import End, Host, is_unseen
from hangscope.diagnosis.records.evidence import Bounds, end_is_unseen, rank_bounds, told_of_only
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.records.kinds import is_one_sided, which
from hangscope.diagnosis.records.pace import last_moved_ns, standstill_s
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import Flag, RankFacts, Trace

_OUTSIDE = (9, 15, 2, 1)
"""SIGKILL, SIGTERM, SIGINT, SIGHUP: sent by somebody else."""
_SECOND_NS = 1_000_000_000


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


def swept_up(trace: Trace, front: Frontiers, hosts: dict[int, Host]) -> dict[int, Host]:
    """Ends from outside on a job that stood still are nobody's failure.

    A single rank that was ended so, and waited for nobody until then, stays a suspect: it may have
    been killed (for memory, say) in the long computation that the others waited for. One that was
    stopped computes nothing.
    """
    hosts = {rank: _over_before(trace, host) for rank, host in hosts.items()}
    if not any(host.end is End.CRASHED for host in hosts.values()):
        return hosts
    latest = last_moved_ns(trace)
    if not latest:
        return hosts
    stood_ns = max(latest.values()) + int(standstill_s(trace) * _SECOND_NS)
    unrecorded = frozenset(told_of_only(trace))
    bounds = rank_bounds(trace)
    hosts = _without_who_gave_up(trace, front, bounds, hosts, stood_ns)
    in_vain = [h.end_ns for h in hosts.values() if h.secondary and _in_vain(h) and h.end_ns]
    gave_up_ns = min(in_vain, default=0)
    lost = bool(trace.missing_ranks)
    # Who fell silent long before the last of the others was not stopped with them.
    newest_ns = max(host.end_ns for host in hosts.values())
    silent_ns = newest_ns - int(standstill_s(trace) * _SECOND_NS)
    ended = {}
    for rank, host in hosts.items():
        if host.end is not End.CRASHED or not _from_outside(trace.ranks[rank], rank in unrecorded):
            continue
        unseen = is_unseen(trace.ranks[rank])
        late = host.end_ns >= stood_ns
        # Beside a rank that left nothing, the end of one that waited is nobody's failure.
        waited = lost and unseen and _may_have_waited(trace, front, bounds, rank)
        late |= waited and not (host.end_ns < silent_ns and _over_elsewhere(trace, front, rank))
        # One whose connections had broken would not have given up in vain a moment later.
        late |= unseen and gave_up_ns > 0 and gave_up_ns - host.end_ns < NOTICED_LATE_NS
        if late or (rank in unrecorded and 0 < gave_up_ns <= host.end_ns + _SECOND_NS):
            ended[rank] = host
    first = min(ended.values(), key=lambda h: h.end_ns, default=None)
    if first is None or _others_had_left(hosts, first):
        return hosts
    waited = _may_have_waited(trace, front, bounds, first.rank) if lost else False
    alone = all(
        h is first or h.end_ns - first.end_ns > TOGETHER_NS for h in ended.values()
    ) and not (waited or first.state == "stopped" or _was_waiting(trace, front, bounds, first.rank))
    # Who is ended after others were, or had given up, is ended with them, however long that takes.
    # Who still waited in vain later than the last sign of one that fell silent had outlived nobody.
    last_ns = first.end_ns + (NOTICED_LATE_NS if is_unseen(trace.ranks[first.rank]) else 0)
    after_others = any(
        stood_ns <= h.end_ns
        and (
            (h.end_ns < first.end_ns and _was_ended(trace, h))
            or (h.end_ns < last_ns and _in_vain(h))
        )
        for h in hosts.values()
    )
    if alone and not after_others and first.rank not in unrecorded:
        del ended[first.rank]
    return {
        rank: replace(host, end=End.TORN_DOWN, secondary=True) if rank in ended else host
        for rank, host in hosts.items()
    }


def _over_before(trace: Trace, host: Host) -> Host:
    """Who is killed from outside long after its program was over is killed for being there."""
    facts = trace.ranks[host.rank]
    if host.end is not End.CRASHED or not facts.is_only_leaving or not _from_outside(facts, False):
        return host
    over_ns = max(host.end_ns, facts.observed_ns) - facts.phases[-1].since_ns
    if not facts.phases[-1].since_ns or over_ns < trace.timeout_s * _SECOND_NS:
        return host
    return replace(host, end=End.TORN_DOWN, secondary=True)


def _without_who_gave_up(
    trace: Trace, front: Frontiers, bounds: Bounds, hosts: dict[int, Host], stood_ns: int
) -> dict[int, Host]:
    """Watchdogs abort ranks whose wait they have given up, and then all others that hear of it.

    One that aborts before any that waited, or alone without having waited, has failed.
    """
    silent = {r: h for r, h in hosts.items() if _gave_up(trace, h, stood_ns)}
    waited = [
        trace.ranks[r].exit.at_ns  # type: ignore[union-attr]
        for r in silent
        if _may_have_waited(trace, front, bounds, r) or _in_a_phase(trace.ranks[r])
    ]
    if not waited:
        return hosts
    first_ns = min(waited) - TOGETHER_NS
    gave_up = [r for r, h in silent.items() if h.end_ns >= first_ns or not min(waited)]
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
