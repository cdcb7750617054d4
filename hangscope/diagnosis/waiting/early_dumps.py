"""Dumps that were written before the job moved on, as completions in other dumps show.

No rank can finish a collective of all members before every member has issued it. If a rank's dump
lacks a collective that a peer has finished, the rank issued it after its dump was written: it no
longer waits where its dump says so, and where it is now is not recorded.
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import NEVER_CAME, Verdict
from hangscope.diagnosis.observability import is_followed, named_locally, snapshots
from hangscope.diagnosis.records.frontier import UNKNOWN, Bools
from hangscope.diagnosis.waiting.wait_duration import SLOW_S, is_beyond_any_timeout
from hangscope.trace.model import Flag
from hangscope.trace.units import SECOND_NS

_ACCUSING = NEVER_CAME | {Verdict.STUCK_COLLECTIVE}
_OF_WAITING = _ACCUSING | {Verdict.DEADLOCK_CYCLE}
_SLOW_NS = 60 * SECOND_NS
_EARLY_PART = 4
"""A dump written in the first quarter of the others' wait was written early."""


def overtaken(context: Context) -> frozenset[int]:
    """Ranks that moved on after their dumps were written, as other dumps show."""
    front = context.front
    known = _members(context, (front.enqueued != UNKNOWN) & (front.enqueued < front.ended))
    return known | _missing_from_dump(context)


def _missing_from_dump(context: Context) -> frozenset[int]:
    """Ranks with complete dumps that lack a group which moved on and needed them.

    A rank whose dump lists only unfinished operations, or whose older records are overwritten, may
    have issued them all the same.
    """
    trace, front = context.trace, context.front
    if not _are_snapshots(context):
        return frozenset()
    whole = {r for r, f in trace.ranks.items() if f.oldest_record_id == 1}
    whole -= context.unfinished_alone
    seen = set(zip(front.rank.tolist(), front.group.tolist(), strict=True))
    went_on = np.unique(front.group[front.ended > 0]).tolist()
    return frozenset(
        rank
        for group in went_on
        if trace.groups[group].listed
        for rank in trace.groups[group].ranks
        if rank in whole and (rank, group) not in seen
    )


def went_on_after_dump(context: Context, cause: Cause) -> tuple[int, ...]:
    """Those on whom a cause rests that moved on after their dumps were written.

    The same goes for a rank whose dump still shows an operation as unfinished although the rank has
    moved past it, unless the job is known to have stood still (its states were just updated late).
    """
    if not _are_snapshots(context) or cause.verdict not in _OF_WAITING or not cause.places:
        return ()
    moved = overtaken(context)
    if cause.verdict is Verdict.STUCK_COLLECTIVE and not stood_still(context):
        moved |= _members(context, context.front.late)
    waiting = context.waits.waiters_at(cause.places)
    return tuple(sorted(moved & (set(cause.culprits) or waiting)))


def stood_still(context: Context) -> bool:
    """Whether the dumps' dates show that somebody had waited for long."""
    waited_s = context.longest_wait_s(context.waits.places)
    return waited_s >= SLOW_S and not is_beyond_any_timeout(context, waited_s)


def dumped_before(context: Context, cause: Cause) -> tuple[int, ...]:
    """The accused whose dumps were written before others had waited for them for long; where nobody
    finishes a collective and nobody is accused, its members.

    Clocks of different hosts disagree slightly. If the others were dumped long after their wait
    began, a dump need not predate that wait to count as early: a rank that is briefly slow looks
    the same, and so does one about to finish what others have finished.
    """
    if cause.verdict not in _ACCUSING or not _are_snapshots(context):
        return ()
    written = {r: f.observed_ns for r, f in context.trace.ranks.items() if f.observed_ns > 0}
    began_ns = _others_began(context, cause)
    if not began_ns:
        return ()
    lasted = max(max(written.values(), default=0) - began_ns, 0)
    late_ns = began_ns - SECOND_NS + min(_SLOW_NS, lasted // _EARLY_PART)
    concerned = cause.culprits
    if cause.verdict is Verdict.STUCK_COLLECTIVE and not concerned:
        concerned = tuple(sorted({r for p in context.waits.at(cause.places) for r in p.members}))
    return tuple(r for r in concerned if written.get(r, late_ns) < late_ns)


def _others_began(context: Context, cause: Cause) -> int:
    """When (ns) ranks other than the accused began to wait.

    A rank that cannot finish something is a waiter itself, and its dump's times may come from an
    earlier process.
    """
    accused = set(cause.culprits)
    if cause.verdict is not Verdict.STUCK_COLLECTIVE or not accused:
        return cause.began_ns
    others = [p.began_ns for p in context.waits.places if p.began_ns and set(p.waiters) - accused]
    return max(cause.began_ns, min(others, default=0)) if cause.began_ns else 0


def _members(context: Context, pairs: Bools) -> frozenset[int]:
    """Ranks of these (rank, group) pairs, where the dumps list the members."""
    trace, front = context.trace, context.front
    if not _are_snapshots(context):
        return frozenset()
    groups = np.unique(front.group[pairs]).tolist()
    # A rank that issued something in a group is a member, unless ranks number their groups locally.
    named = not named_locally(trace) and not (trace.records["flags"] & int(Flag.UNOBSERVED)).any()
    members = {
        g: frozenset(trace.groups[g].ranks) for g in groups if named or trace.groups[g].listed
    }
    found = zip(front.rank[pairs].tolist(), front.group[pairs].tolist(), strict=True)
    return frozenset(rank for rank, group in found if rank in members.get(group, ()))


def _are_snapshots(context: Context) -> bool:
    """Whether ranks are known from what each left at a moment of its own.

    A log next to that adds facts on some ranks and never contradicts what others have finished.
    """
    trace = context.trace
    return bool(snapshots(trace)) and not is_followed(trace) and not trace.live
