"""Dumps that were written before the job went on: what others have finished since tells so.

Nobody finishes a collective of all members before every member has issued it. A rank whose dump
knows nothing of one that a peer's calls finished issued it after its dump was written: it waits no
longer where its dump says so, and where it stands now is on no record.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.cause import Cause, rank_list
from hangscope.diagnosis.context import SECOND_NS, Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.records.frontier import UNKNOWN, Bools
from hangscope.diagnosis.waiting.wait_duration import stood_still
from hangscope.trace import formats
from hangscope.trace.model import Flag, Trace

_ACCUSING = (Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED, Verdict.STUCK_COLLECTIVE)
_OF_WAITING = (*_ACCUSING, Verdict.DEADLOCK_CYCLE)
_SLOW_NS = 60 * SECOND_NS
_EARLY_PART = 4
"""Who was dumped in the first quarter of the time that others waited was dumped early."""


def overtaken(context: Context) -> frozenset[int]:
    """Ranks that went on after their dumps were written, as the dumps of others show."""
    front = context.front
    known = _members(context, (front.enqueued != UNKNOWN) & (front.enqueued < front.ended))
    return known | _without_a_word(context)


def _without_a_word(context: Context) -> frozenset[int]:
    """Ranks whose dumps have all they ever issued, and nothing in a group that went on with them.

    Whoever lists only what is unfinished, or whose older records are overwritten, may have
    issued it all the same.
    """
    trace, front = context.trace, context.front
    if not _told_by_dumps(context):
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
    """Such a rank is accused of nothing, and nobody is stuck where only such ranks wait.

    Nor is one whose dump does not know yet that it had finished what it is past, unless it is known
    that the job stood still: then its states were only written down late. Gives the ranks because
    of which an answer no longer holds.
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
    """The accused of a cause of waiting, or else those who wait there."""
    if cause.verdict not in _OF_WAITING or not cause.places:
        return set()
    waiting = {r for i in cause.places for r in context.waits.places[i].waiters}
    return set(cause.culprits) or waiting


def without_dumps_of(trace: Trace, ranks: frozenset[int]) -> Trace:
    """The trace as it would be if these ranks had left no dump."""
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
    """Who was dumped before the others began to wait for it may have come since.

    Clocks of hosts differ a little. Where the others were dumped long after they had begun, it need
    not have been before they did so: a rank that is slow for a moment looks the same, as does one
    that is about to finish what others have. Gives the latter: they are stuck in nothing.
    """
    if not _told_by_dumps(context):
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
        elif stuck or cause.confidence is Confidence.AMBIGUOUS:  # each stands for the others
            found.append(cause.doubted(reason))
        else:
            rest = tuple(r for r in cause.culprits if r not in before)
            found.append(replace(cause, culprits=rest or cause.culprits).doubted(reason))
    return found, frozenset(too_early)


def _others_began(context: Context, cause: Cause) -> int:
    """When (ns) others began to wait, of whom the accused of a cause are no part.

    Who cannot finish something waits itself, and what its dump says of that may be of another life.
    """
    accused = set(cause.culprits)
    if cause.verdict is not Verdict.STUCK_COLLECTIVE or not accused:
        return cause.began_ns
    others = [p.began_ns for p in context.waits.places if p.began_ns and set(p.waiters) - accused]
    return max(cause.began_ns, min(others, default=0)) if cause.began_ns else 0


def _dumped_before(
    cause: Cause, began_ns: int, written: dict[int, int], newest: int
) -> tuple[int, ...]:
    """The accused whose dumps were written (when, in ns) before others had waited for long."""
    if cause.verdict not in _ACCUSING or not began_ns:
        return ()
    lasted = max(newest - began_ns, 0)
    late_ns = began_ns - SECOND_NS + min(_SLOW_NS, lasted // _EARLY_PART)
    return tuple(r for r in cause.culprits if written.get(r, late_ns) < late_ns)


def _members(context: Context, pairs: Bools) -> frozenset[int]:
    """Ranks of these pairs of rank and group, where dumps tell the members."""
    trace, front = context.trace, context.front
    if not _told_by_dumps(context):
        return frozenset()
    groups = np.unique(front.group[pairs]).tolist()
    # Who has issued something in a group is a member, unless every rank counts its own groups.
    named = all(s.version != "none" for s in trace.sources)
    named &= not (trace.records["flags"] & int(Flag.UNOBSERVED)).any()
    members = {
        g: frozenset(trace.groups[g].ranks) for g in groups if named or trace.groups[g].listed
    }
    found = zip(front.rank[pairs].tolist(), front.group[pairs].tolist(), strict=True)
    return frozenset(rank for rank, group in found if rank in members.get(group, ()))


def _told_by_dumps(context: Context) -> bool:
    """Whether all that is recorded comes from dumps: each shows the moment it was written at.

    A log beside them tells more of some ranks, and nothing against what others have finished.
    """
    trace = context.trace
    kinds = {s.format for s in trace.sources}
    return not trace.live and kinds <= {*formats.DUMPS, formats.LOG} and kinds != {formats.LOG}
