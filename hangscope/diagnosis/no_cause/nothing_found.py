"""What to report if the graph shows no cause: healthy, quiescent or inconclusive."""

from __future__ import annotations

from collections.abc import Sequence

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.primary_failures import had_destroyed_groups, may_have_given_up
from hangscope.diagnosis.exits.stops import STATUS, UNSEEN
from hangscope.diagnosis.model import Finding
from hangscope.diagnosis.no_cause.claims import from_claims, secondary_failures
from hangscope.diagnosis.no_cause.final_tracebacks import from_final_tracebacks
from hangscope.diagnosis.no_cause.inconclusive import (
    ended_unseen,
    inconclusive,
    unearned,
)
from hangscope.diagnosis.no_cause.lingering_processes import lingering
from hangscope.diagnosis.no_cause.roll_call import by_roll_call
from hangscope.diagnosis.no_cause.standstill import (
    after_silence,
    never_began,
    of_dumps,
    quiescent,
    stood_before_the_end,
    stopped_after_a_standstill,
)
from hangscope.diagnosis.observability import is_text_alone
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.waiting.snapshots import Snapshot
from hangscope.diagnosis.wording.stack_summary import by_stacks
from hangscope.trace.model import Claim

_SEEN_BY_LAUNCHER = "launcher_failure"
_DISTRESS = frozenset(
    {
        "timeout",
        "dump_signal",
        "network_error",
        "rendezvous",
        _SEEN_BY_LAUNCHER,
        "size_mismatch",
    }
)
"""Kinds of statements that indicate a hang or a failure even if they name nobody."""
_FAILURES = frozenset({"oom", "device_error"})


def without_cause(
    context: Context, killed: str | None, snapshot: Snapshot | None
) -> Finding | None:
    """Judge a trace in which no rank is known to wait for another.

    Parameters
    ----------
    killed:
        How every rank was ended from outside at about the same time; None if they were not.
    snapshot:
        The evidence that the dumps show a moving job; None if there is none.

    Returns
    -------
    Finding or None
        Who is accused by something else than the graph, or else that the job is ``inconclusive``
        or ``quiescent``; None for a healthy one.
    """
    found = _found(context, killed, snapshot)
    return found if found is not None else unearned(context, moved=snapshot is not None)


def _found(context: Context, killed: str | None, snapshot: Snapshot | None) -> Finding | None:
    gave_up = may_have_given_up(context.trace)
    claims = (
        c for c in context.trace.claims if killed is None or not _tells_of_signals(context, c)
    )
    found = (
        from_claims(tuple(c for c in claims if gave_up.isdisjoint(c.accused)))
        or by_stacks(context)
        or by_roll_call(context)
        or from_final_tracebacks(context)
        or lingering(context)
    )
    if found is not None:
        return found
    if gave_up:
        return inconclusive(context)
    if snapshot is not None and not _shows_movement(context, snapshot):
        return inconclusive(context)
    if killed is not None:
        return _ended_from_outside(context, killed, moving=snapshot is not None)
    if snapshot is not None:
        return None
    return _neither_killed_nor_moving(context)


def _shows_movement(context: Context, snapshot: Snapshot) -> bool:
    """Whether the dumps are of a job that moved; those of only half the ranks prove little."""
    return snapshot.moved and len(context.trace.missing_ranks) < len(context.trace.ranks)


def _ended_from_outside(context: Context, killed: str, moving: bool) -> Finding | None:
    """A job whose ranks were all ended at once: did it hang before?"""
    trace = context.trace
    finished = all(facts.finalized for facts in trace.ranks.values())
    if killed.startswith(STATUS) and not finished:
        return ended_unseen(context, killed)
    if not moving and not finished:
        if killed == UNSEEN or trace.missing_ranks:
            return ended_unseen(context)
        stood_s = stood_before_the_end(context)
        if stood_s >= trace.timeout_s:
            return quiescent(context, stood_s)
        if (found := never_began(context)) is not None:
            return found
    if is_text_alone(trace) and not len(trace.records):
        return inconclusive(context, stopped=True)
    return None


def _neither_killed_nor_moving(context: Context) -> Finding | None:
    """A job whose ranks ended one by one, or stand still, or which left only a log."""
    trace, processes = context.trace, context.processes
    ends = [
        h.end
        for h in processes.values()
        if not (h.gone and had_destroyed_groups(trace.ranks[h.rank]))
    ]
    over = bool(ends) or (bool(processes) and all(process.gone for process in processes.values()))
    if over and all(e is End.CLEAN for e in ends) and not trace.missing_ranks:
        return None
    ended = _failed_or_stopped(context, ends)
    if ended is not None:
        return ended
    if trace.live:
        return after_silence(context)
    stood = stopped_after_a_standstill(context)
    if stood is not None:
        return stood
    nothing_issued = is_text_alone(trace) and not len(trace.records)
    if any(e is not End.UNKNOWN for e in ends) and not nothing_issued:
        return None
    if not len(trace.records) and not len(trace.members):
        return inconclusive(context)
    return of_dumps(context)


def _failed_or_stopped(context: Context, ends: Sequence[End]) -> Finding | None:
    """What is known about a job in which something failed, or which was told to stop."""
    trace = context.trace
    if any(c.kind in _DISTRESS for c in trace.claims):
        return inconclusive(context)
    if any(e is End.CRASHED for e in ends):
        return secondary_failures(context)
    if not any(claim.details.stopped for claim in trace.claims):
        return None
    failed = any(_failed_by_itself(claim) for claim in trace.claims)
    return None if len(trace.records) and not failed else inconclusive(context, stopped=not failed)


def _failed_by_itself(claim: Claim) -> bool:
    """Whether a statement is about a failure of an unknown rank before the job was told to stop."""
    failed = claim.details.unattributed or (claim.kind in _FAILURES and not claim.accused)
    return bool(claim.details.dead_thread or (failed and not claim.details.after_stop))


def _tells_of_signals(context: Context, claim: Claim) -> bool:
    """Whether a claim only says by which signal ranks ended, as seen by the launcher."""
    ends = [context.trace.ranks[r].exit for r in claim.accused if r in context.trace.ranks]
    by_signal = all(end is not None and end.signal is not None for end in ends)
    return claim.kind == _SEEN_BY_LAUNCHER and bool(ends) and by_signal
