"""Dumps that were written before the job moved on, as completions in other dumps show.

No rank can finish a collective of all members before every member has issued it. If a rank's dump
lacks a collective that a peer has finished, the rank issued it after its dump was written: it no
longer waits where its dump says so, and where it is now is not recorded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.cause import Cause, rank_list
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.records.frontier import UNKNOWN, Bools
from hangscope.diagnosis.waiting.wait_doubts import stood_still
from hangscope.trace import formats
from hangscope.trace.model import Flag, Trace
from hangscope.trace.units import SECOND_NS

_ACCUSING = (Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED, Verdict.STUCK_COLLECTIVE)
_OF_WAITING = (*_ACCUSING, Verdict.DEADLOCK_CYCLE)
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
    if not _from_dumps_only(context):
        return frozenset()
    whole = {r for r, f in trace.ranks.items() if f.oldest_record_id == 1 and not f.only_active}
    seen = set(zip(front.rank.tolist(), front.group.tolist(), strict=True))
    went_on = np.unique(front.group[front.ended > 0]).tolist()
    return frozenset(
        rank
        for group in went_on
        if trace.groups[group].listed
        for rank in trace.groups[group].ranks
        if rank in whole and (rank, group) not in seen
    )


def doubt_overtaken(context: Context, causes: list[Cause]) -> tuple[list[Cause], frozenset[int]]:
    """Clear such ranks of any accusation; nothing is stuck where only such ranks wait.

    The same goes for a rank whose dump still shows an operation as unfinished although the rank has
    moved past it, unless the job is known to have stood still (its states were just updated late).
    Also returns the ranks because of which an answer was withdrawn.
    """
    early = unsure = overtaken(context)
    if not stood_still(context):
        unsure = early | _members(context, context.front.late)
    found: list[Cause] = []
    in_the_way: set[int] = set()
    for cause in causes:
        stuck = cause.verdict is Verdict.STUCK_COLLECTIVE
        stands_on = _rests_on(context, cause) & (unsure if stuck else early)
        if stands_on:
            in_the_way |= early & stands_on
            cause = cause.naming_nobody(
                f"{rank_list(tuple(sorted(stands_on)))} went on after being dumped: others have "
                "finished what is unfinished in those dumps, so the job was moving; dump all ranks "
                "again at one moment"
            )
        found.append(cause)
    return found, frozenset(in_the_way)


def _rests_on(context: Context, cause: Cause) -> set[int]:
    """The ranks a cause about waiting relies on: the accused, or else the waiters."""
    if cause.verdict not in _OF_WAITING or not cause.places:
        return set()
    waiting = context.waits.waiters_at(cause.places)
    return set(cause.culprits) or waiting


def without_dumps_of(trace: Trace, ranks: frozenset[int]) -> Trace:
    """The trace as if these ranks had left no dump."""
    gone = np.array(sorted(ranks), np.int64)
    return replace(
        trace,
        records=trace.records[~np.isin(trace.records["rank"], gone)],
        members=trace.members[~np.isin(trace.members["rank"], gone)],
        ranks={r: facts for r, facts in trace.ranks.items() if r not in ranks},
        sources=tuple(s for s in trace.sources if s.rank not in ranks),
        world_size=trace.world_size or max(trace.ranks) + 1,
    )


def doubt_dumped_before(
    context: Context, causes: list[Cause]
) -> tuple[list[Cause], frozenset[int]]:
    """Doubt ranks that were dumped before others began to wait for them: they may have arrived
    since.

    Clocks of different hosts disagree slightly. If the others were dumped long after their wait
    began, a dump need not predate that wait to count as early: a rank that is briefly slow looks
    the same, and so does one about to finish what others have finished. Also returns ranks of the
    latter kind; they are not stuck.
    """
    if not _from_dumps_only(context):
        return causes, frozenset()
    written = {r: f.observed_ns for r, f in context.trace.ranks.items() if f.observed_ns > 0}
    newest = max(written.values(), default=0)
    found: list[Cause] = []
    too_early: set[int] = set()
    for cause in causes:
        before = _dumped_before(cause, _others_began(context, cause), written, newest)
        stuck = cause.verdict is Verdict.STUCK_COLLECTIVE
        reason = f"{rank_list(before)} had been dumped before the others waited for long"
        if not before:
            found.append(cause)
        elif stuck and before == cause.culprits:
            too_early |= set(before)
            found.append(cause.naming_nobody(reason))
        elif stuck or cause.confidence is Confidence.AMBIGUOUS:  # each stands for all
            found.append(cause.doubted(reason))
        else:
            rest = tuple(r for r in cause.culprits if r not in before)
            found.append(replace(cause, culprits=rest or cause.culprits).doubted(reason))
    return found, frozenset(too_early)


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


def _dumped_before(
    cause: Cause, began_ns: int, written: dict[int, int], newest: int
) -> tuple[int, ...]:
    """The accused whose dumps were written (ns) before others had waited for long."""
    if cause.verdict not in _ACCUSING or not began_ns:
        return ()
    lasted = max(newest - began_ns, 0)
    late_ns = began_ns - SECOND_NS + min(_SLOW_NS, lasted // _EARLY_PART)
    return tuple(r for r in cause.culprits if written.get(r, late_ns) < late_ns)


def _members(context: Context, pairs: Bools) -> frozenset[int]:
    """Ranks of these (rank, group) pairs, where the dumps list the members."""
    trace, front = context.trace, context.front
    if not _from_dumps_only(context):
        return frozenset()
    groups = np.unique(front.group[pairs]).tolist()
    # A rank that issued something in a group is a member, unless ranks number their groups locally.
    named = all(s.version != "none" for s in trace.sources)
    named &= not (trace.records["flags"] & int(Flag.UNOBSERVED)).any()
    members = {
        g: frozenset(trace.groups[g].ranks) for g in groups if named or trace.groups[g].listed
    }
    found = zip(front.rank[pairs].tolist(), front.group[pairs].tolist(), strict=True)
    return frozenset(rank for rank, group in found if rank in members.get(group, ()))


def _from_dumps_only(context: Context) -> bool:
    """Whether all evidence comes from dumps, each a snapshot at the time it was written.

    A log next to them adds facts on some ranks and never contradicts what others have finished.
    """
    trace = context.trace
    kinds = {s.format for s in trace.sources}
    return not trace.live and kinds <= {*formats.DUMPS, formats.LOG} and kinds != {formats.LOG}
