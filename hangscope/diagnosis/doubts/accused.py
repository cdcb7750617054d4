"""Doubts about the accused: what they may be doing instead, and how they ended."""

from __future__ import annotations

import re
from itertools import takewhile

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.exits.stops import signal_of, signalled_alone
from hangscope.diagnosis.graph.lock_places import is_lock, is_polled
from hangscope.diagnosis.groups.left import has_left_group
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.failures import lost_a_peer
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.stacks import in_framework, is_library
from hangscope.diagnosis.records.coverage import counts_as_unfinished
from hangscope.diagnosis.wording.blocked import blocked_in
from hangscope.diagnosis.wording.phrases import does, rank_s
from hangscope.trace.facts import RUNNABLE
from hangscope.trace.model import Flag, Frame, RankFacts
from hangscope.trace.signals import SIGKILL
from hangscope.trace.units import SECOND_NS

_MEETINGS = frozenset({"barrier", "_barrier", "report", "wait_for_everyone", "wait_for_all"})
"""Functions of frameworks that return once every worker has called them."""
_REMOTE = re.compile(r"[\\/]torch[\\/](?:distributed[\\/]rpc|futures)[\\/]")
"""A call of a function on another rank, which leaves no record."""
_HELPERS_BUSY = 0.08
"""CPU seconds per second from which on child processes are at work; on a crowded machine they get
little more."""
_NOT_FOR_HELPERS = frozenset({"lock", "locked file", "fifo", "terminal", "timer"})
"""Kinds of `KernelWait` that a child process at work does not end."""
_COUNTED_NS = 3 * SECOND_NS
_TELLS = int(Flag.BLOCKING | Flag.ASYNC)
"""How a send was meant."""


def busy(context: Context, cause: Cause) -> str:
    """For a while, slow and stuck look alike, also where all were ended before it was over."""
    stopped = all(process.end is End.TORN_DOWN for process in context.processes.values())
    if not (context.trace.live or stopped) or not cause.culprits:
        return ""
    if not all(_makes_progress(context, rank) for rank in cause.culprits):
        return ""
    places = context.waits.at(cause.places)
    if any(has_left_group(context.trace, r, p.group) for r in cause.culprits for p in places):
        return ""  # it never comes, however long it works
    limit = f"HANGSCOPE_TIMEOUT ({lasting(context.trace.timeout_s)})"
    who = does(cause.culprits, "was" if stopped else "is")
    if any(_is_helped(context, rank) for rank in cause.culprits):
        who = f"what {does(cause.culprits, 'has')} started {'was' if stopped else 'is'}"
    if stopped:
        return f"whether the job hung: {who} at work, and may only have taken longer than {limit}"
    return f"whether the job hangs: {who} at work, and may only take longer than {limit}"


def _makes_progress(context: Context, rank: int) -> bool:
    """Whether the process was seen to run, not just to poll for what it waits for."""
    process, facts = context.processes.get(rank), context.trace.ranks.get(rank)
    if process is None or facts is None or process.end not in (End.ALIVE, End.TORN_DOWN):
        return False
    if process.wait is not None and process.wait.kind == RUNNABLE:
        return True  # it runs whenever it gets a CPU
    if process.cannot_run:
        return False
    if process.seen_state == "busy" or _is_helped(context, rank):
        return True
    return not blocked_in(process) and (bool(facts.stack_moved) or process.wakes)


def _is_helped(context: Context, rank: int) -> bool:
    """Whether the process is blocked, perhaps until one of its child processes is done, and those
    compute."""
    process, facts = context.processes[rank], context.trace.ranks[rank]
    others = process.wait is not None and process.wait.kind in _NOT_FOR_HELPERS
    return (facts.helpers_busy or 0.0) > _HELPERS_BUSY and not others


def held_up(context: Context, cause: Cause) -> str:
    """The accused seem to wait for another rank outside communication."""
    for rank in cause.culprits:
        process = context.processes.get(rank)
        wait = process.wait if process is not None else None
        if process is None or wait is None or not process.waits_for:
            continue
        others = rank_s(process.waits_for)
        if wait.kind == "socket":
            return f"rank {rank} waits for an answer of {others}"
        if wait.kind == "semaphore":
            return f"{others} may hold the semaphore that rank {rank} waits for"
        if wait.kind == "locked file":
            return f"{others} holds a lock that rank {rank} may wait for"
    return ""


def meets_elsewhere(context: Context, cause: Cause) -> str:
    """The accused waits inside a call that needs others: a framework's meeting, a remote call."""
    stacks = [context.processes[r].stack for r in cause.culprits if r in context.processes]
    calls = [next(filter(_needs_others, takewhile(is_library, s)), None) for s in stacks]
    names = {call.name for call in calls if call is not None}
    if not stacks or None in calls:
        return ""
    return f"{rank_s(cause.culprits)} may itself wait there: {names.pop()} needs other ranks"


def _needs_others(frame: Frame) -> bool:
    """Whether a function of a library returns only once other ranks have done their part."""
    meets = frame.name in _MEETINGS and in_framework(frame)
    return meets or bool(_REMOTE.search(frame.filename))


def stands_on_device(context: Context, cause: Cause) -> str:
    """Ranks whose own device is stuck according to its backend's counter may wait for somebody."""
    if cause.mismatch is not None:
        return ""
    standing = [rank for rank in cause.culprits if _is_stuck_on_device(context, rank)]
    if not standing:
        return ""
    return f"{rank_s(standing)} stood on their devices, and it is not known for whom"


def _is_stuck_on_device(context: Context, rank: int) -> bool:
    """Whether a backend counts a rank's newest collective as unfinished and had time to update.

    Its counter is copied while the rank's recorder runs, at most a second late.
    """
    trace, process, row = context.trace, context.processes.get(rank), context.last_row(rank)
    facts = trace.ranks.get(rank)
    if process is None or facts is None or facts.unobservable:
        return False
    if row < 0 or (process.frozen and not process.gone):
        return False
    if process.beat_ns < int(trace.records["created_ns"][row]) + _COUNTED_NS:
        return False
    low, pairs = context.bounds[rank][0], context.pairs_of_rank[rank]
    return counts_as_unfinished(trace, context.front, row, low, pairs)


def equal_sides(context: Context, cause: Cause) -> str:
    """One left an operation out, or the other issued one too many."""
    behind = cause.victims - set(cause.culprits)
    observed = any(context.is_observed(rank) for rank in cause.culprits)
    if len(behind) > len(cause.culprits) or observed:
        return ""
    return "as few wait as are accused: they may have issued one operation too many"


def unseen(context: Context, cause: Cause) -> str:
    """One side of a pair has a half too many or the other one too few; and a rank of which a log is
    silent may wait in another group with a longer timeout."""
    processes = [context.processes.get(rank) for rank in cause.culprits]
    if not any(process is None or process.state == "unknown" for process in processes):
        return ""
    if cause.verdict is Verdict.P2P_UNMATCHED:
        return "nothing shows what that rank does instead"
    if cause.verdict is Verdict.MISSING_RANK and context.from_logs_alone:
        return "the log does not say what that rank does instead"
    return ""


def nothing_listed(context: Context, cause: Cause) -> str:
    """The dump of the accused lists nothing, not even a counter."""
    silent = context.blank.intersection(cause.culprits)
    who = rank_s(silent)
    return f"the dump of {who} lists nothing, not even how far it had come" if silent else ""


def rank_by_order(context: Context, cause: Cause) -> str:
    """Which rank a process is follows from the order in which its parent started it."""
    for facts in _facts(context, cause):
        if facts.is_placed_by_order and facts.initialized is False:
            return (
                f"that process {facts.pid} is rank {facts.rank} follows from the order in which "
                "its parent started its processes"
            )
    return ""


def unobservable(context: Context, cause: Cause) -> str:
    """The accused uses something that leaves no record, like a CUDA graph."""
    for facts in _facts(context, cause):
        if facts.unobservable:
            return f"rank {facts.rank}: {', '.join(facts.unobservable)} leaves no record"
    return ""


def uncreated_group(context: Context, cause: Cause) -> str:
    """Unobserved ranks that were due to use a group for the first time may still be creating it."""
    trace = context.trace
    seen = any(
        f.threads or f.phases or f.alive is not None or f.exit for f in _facts(context, cause)
    )
    if seen or not cause.culprits:
        return ""
    places = context.waits.at(cause.places)
    first = [p for p in places if not p.phase and not p.p2p and p.seq == 1]
    if all(len(trace.groups[place.group].ranks) == trace.world_size for place in first):
        return ""
    return (
        f"whether {rank_s(cause.culprits)} had created this group: new_group waits for ranks "
        "that create another one first, and a dump does not show that"
    )


def unfinished_send(context: Context, cause: Cause) -> str:
    """The source does not show whether a rank waits for its send or has fired and forgotten it."""
    flags, accused = context.trace.records["flags"], set(cause.culprits)
    for half in context.pending_halves:
        if half.rank in accused and half.is_send and not int(flags[half.row]) & _TELLS:
            return f"whether rank {half.rank} waits for its send to be received"
    return ""


def polled_lock(context: Context, cause: Cause) -> str:
    """For polled locks it is not recorded which lock is wanted, only which one is held."""
    accused = set(cause.culprits)
    for place in filter(is_lock, context.waits.places):
        polled = any(is_polled(context.processes.get(rank)) for rank in place.waiters)
        if polled and accused.intersection(place.targets):
            return f"which lock {rank_s(place.waiters)} wants is inferred: it is the only one held"
    return ""


def status_unseen(context: Context, cause: Cause) -> str:
    """A rank that left quietly may have timed out: it had not said that it was done."""
    quiet = any(
        f.exit is not None and f.exit.kind == "clean" and f.exit.code is None and not f.finalized
        for f in _facts(context, cause)
    )
    return "nobody saw with which status the accused ended" if quiet else ""


def first_end_cut(context: Context, cause: Cause) -> str:
    """A launcher's table that is cut names only ranks that failed later."""
    told = {r for c in context.trace.claims for r in c.details.failed_later}
    later = {r for r in told if context.trace.ranks[r].exception is None}
    if not later.issuperset(cause.culprits):
        return ""
    return "torchrun's table ends before it tells which process failed first"


def reaction(context: Context, cause: Cause) -> str:
    """The end of the accused may be a reaction to another end, or to a request to stop."""
    facts, trace = _facts(context, cause), context.trace
    others = len(trace.ranks) > len(cause.culprits)
    if any(f.aborted_silently for f in facts):
        return "nothing says why it aborted: a watchdog that gives up aborts, too"
    if len(cause.culprits) > 1 and any(f.exit and f.exit.by_launcher for f in facts):
        return "the launcher may have stopped the others because one had ended"
    if others and _not_killed(context) <= set(cause.culprits) and any(map(signal_of, facts)):
        return "the others were killed: they may have been told to stop, too, and have ignored it"
    if signalled_alone(context.processes, trace) in cause.culprits:
        return "the others were told to stop after it: perhaps not because of its end"
    failures = [f.exception for f in trace.ranks.values() if f.exception is not None]
    unknown = any(f.exit and f.exit.not_signalled == frozenset() for f in facts)
    if others and unknown and not any(map(lost_a_peer, failures)):
        return "the others may have been told to stop as well, and handle it"
    return ""


def _not_killed(context: Context) -> set[int]:
    """Ranks that SIGKILL did not end, or only after a failure of their own."""
    return {
        rank
        for rank, facts in context.trace.ranks.items()
        if facts.exit is None or facts.exit.signal != SIGKILL or facts.exception is not None
    }


def _facts(context: Context, cause: Cause) -> list[RankFacts]:
    return [context.trace.ranks[r] for r in cause.culprits if r in context.trace.ranks]
