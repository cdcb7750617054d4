"""Mismatches and crashes as causes, and which causes are consequences of others."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import SECOND_NS, Context
from hangscope.diagnosis.differences.exchange import broken_exchanges, size_conflict
from hangscope.diagnosis.ends.primary_failures import (
    aborted_alone,
    alike,
    had_left,
    primary_crashes,
)
from hangscope.diagnosis.ends.status_only import may_have_given_up, told_by_status
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.majority import may_be_even
from hangscope.diagnosis.pattern.totals import odd_totals
from hangscope.diagnosis.pattern.yardstick import decide_mismatch
from hangscope.diagnosis.processes.host import End, is_unseen
from hangscope.diagnosis.records.mismatch import Mismatch, minority
from hangscope.trace.model import Flag

_MAX_EXCHANGES = 64
_UNSEEN_NS = 2 * SECOND_NS
_CONFLICTS = {
    "dtype": Verdict.DTYPE_MISMATCH,
    "numel": Verdict.SHAPE_MISMATCH,
    "tag": Verdict.P2P_UNMATCHED,
}


def mismatch_causes(context: Context, found: list[Mismatch]) -> list[Cause]:
    """One cause per first disagreement; a later one between the same ranks is its consequence."""
    causes: list[Cause] = []
    records = context.trace.records
    dated = sorted(
        found, key=lambda m: (min(int(records["created_ns"][p.row]) for p in m.parts), m.group)
    )
    for item in dated:
        members = {r for p in item.parts for r in p.ranks}
        if any(members & (set(c.culprits) | c.victims) for c in causes):
            continue
        culprits, decided = minority(item.parts)
        silent = _overwritten(context, item)
        if decided and _may_be_even(context, item, len(silent)):
            culprits, decided = tuple(sorted(members)), False
        confidence = Confidence.CERTAIN if decided else Confidence.AMBIGUOUS
        if not decided and item.aspect != "history":
            unlike = decide_mismatch(context, item) or _odd_side(context, item)
            if unlike:
                culprits, confidence = unlike, Confidence.LIKELY
                item = item.with_last(unlike)
        elif item.aspect == "history":
            confidence = Confidence.LIKELY
        verdict = {
            "op": Verdict.COLLECTIVE_MISMATCH,
            "history": Verdict.COLLECTIVE_MISMATCH,
            "numel": Verdict.SHAPE_MISMATCH,
            "dtype": Verdict.DTYPE_MISMATCH,
        }.get(item.aspect, Verdict.ARGUMENT_MISMATCH)
        group_members = set(context.trace.groups[item.group].ranks) | members
        cause = Cause(
            verdict,
            culprits,
            began_ns=max(int(records["created_ns"][p.row]) for p in item.parts),
            confidence=confidence,
            mismatch=item,
            sides=[p.ranks for p in item.parts],
        )
        if silent:
            cause.doubt("what other members issued there is overwritten")
        cause.victims = context.waits.reachers(group_members) | group_members
        cause.victims -= set(culprits)
        causes.append(cause)
    return causes


def _odd_side(context: Context, item: Mismatch) -> tuple[int, ...]:
    """The side of a mismatch that has issued another number of operations in its group."""
    ranks = {r for part in item.parts for r in part.ranks}
    odd = set(odd_totals(context, ranks, [item.group]))
    sides = [part.ranks for part in item.parts if odd.issuperset(part.ranks)]
    return tuple(sorted(odd)) if odd and sum(map(len, sides)) == len(odd) else ()


def _may_be_even(context: Context, item: Mismatch, silent: int) -> bool:
    """Whether the group has halves, but for members that left no dump: they may be of the smaller.

    So may those of whom that part of the record is gone (``silent``).
    """
    first, second = (len(part.ranks) for part in item.parts[:2])
    lost = set(context.trace.groups[item.group].ranks) - context.on_record
    return may_be_even(first, second, len(lost) + silent)


def _overwritten(context: Context, item: Mismatch) -> set[int]:
    """Members that have issued something at that place or later, and whose record of it is gone."""
    seen = {r for p in item.parts for r in p.ranks}
    front = context.front
    past = (front.group == item.group) & (front.enqueued >= item.seq) & (front.first > item.seq)
    return {r for r in front.rank[past].tolist() if r not in seen}


def conflict_causes(context: Context) -> list[Cause]:
    """Exchanges where everybody has come and the announced sizes contradict each other."""
    found: list[Cause] = []
    looked = 0
    for place in broken_exchanges(context):
        if size_conflict(context, place) is not None:
            context.waits.places.append(place)
    for index, place in enumerate(context.waits.places):
        open_ended = place.absent or (place.p2p and (place.unknown or place.behind))
        if not place.waiters or open_ended or looked >= _MAX_EXCHANGES:
            continue
        looked += 1
        conflict = size_conflict(context, place)
        if conflict is None:
            continue
        odd = () if conflict.decided else odd_totals(context, place.members, [place.group])
        cause = Cause(
            _CONFLICTS[conflict.aspect],
            odd or conflict.ranks,
            [index],
            Confidence.LIKELY if conflict.decided or odd else Confidence.AMBIGUOUS,
            place.began_ns,
            conflict=conflict.text,
        )
        if conflict.aspect == "tag":
            cause.crossed = conflict.text
            cause.sides = [(rank,) for rank in place.members]
            cause.places += [i for i, p in enumerate(context.waits.places) if _meets(place, p)]
        cause.victims = set(place.members) | context.waits.reachers(place.members, [index])
        cause.victims -= set(cause.culprits)
        if not any(cause.victims & (c.victims | set(c.culprits)) for c in found):
            found.append(cause)
    return found


def _meets(place: Place, other: Place) -> bool:
    """Whether ``other`` is the second half of the pair that ``place`` is the first half of."""
    one, two = place.half, other.half
    return one is not None and two is not None and one.partner_row == two.row


def crash_causes(context: Context, causes: list[Cause]) -> list[Cause]:
    """Failures of a rank's own that no graph cause speaks of: everyone else was torn down."""
    waits = context.waits
    crashed = [r for r, h in context.hosts.items() if h.end is End.CRASHED]
    waits_on = {
        r: {t for i in waits.places_of.get(r, ()) for t in waits.places[i].targets} for r in crashed
    }
    found = primary_crashes(context.hosts, waits_on)
    blamed = {r for c in causes for r in c.culprits}
    rest = [h for h in found if h.rank not in blamed and not had_left(context.trace.ranks[h.rank])]
    if any(_left_its_groups(context, c) for c in causes):
        rest = [h for h in rest if not _only_a_status(context, h.rank)]
    gave_up = may_have_given_up(context.trace)
    rest = [h for h in rest if h.rank not in gave_up]
    if not rest:
        return []
    cause = Cause(
        Verdict.RANK_CRASHED,
        tuple(sorted(h.rank for h in rest)),
        began_ns=min((h.end_ns for h in rest if h.end_ns), default=0),
    )
    shared = {r for c in context.trace.claims if c.kind == "shared_device" for r in c.accused}
    if shared.intersection(cause.culprits):  # either rank's choice of its device is the wrong one
        cause.culprits = tuple(sorted({*cause.culprits, *(shared & context.hosts.keys())}))
        cause.confidence = Confidence.AMBIGUOUS
    bare = len(rest) > 1 and all(h.end_text.startswith("exit status") for h in rest)
    if bare or not alike(rest):
        cause.confidence = Confidence.AMBIGUOUS  # nothing tells a first failure from its echo
    if all(is_unseen(context.trace.ranks[h.rank]) for h in rest):
        cause.doubt("nobody saw how the accused ended")
    alone = aborted_alone(context.trace) if context.trace.only_logs else None
    if all(h.rank == alone for h in rest):
        cause.doubt("of what the accused aborted itself is not told")
    if all(_ended_without_a_word(context, h.rank) for h in rest):
        cause.doubt(
            "others gave up waiting for somebody, and of what the accused failed is not told"
        )
    cause.victims = {
        r
        for r, h in context.hosts.items()
        if h.rank not in cause.culprits and (h.end in (End.TORN_DOWN, End.CRASHED) or h.secondary)
    }
    return [cause]


def _left_its_groups(context: Context, cause: Cause) -> bool:
    """Whether the accused had destroyed their groups: that breaks the connections of all others."""
    ranks = context.trace.ranks
    left = all(r in ranks and ranks[r].finalized for r in cause.culprits)
    return bool(cause.culprits) and cause.verdict is Verdict.MISSING_RANK and left


def _ended_without_a_word(context: Context, rank: int) -> bool:
    """Whether a log tells a rank's status only, and that others had waited until a timeout."""
    trace = context.trace
    waited = any(c.kind == "timeout" and c.reporter not in (None, rank) for c in trace.claims)
    return waited and told_by_status(trace, rank)


def _only_a_status(context: Context, rank: int) -> bool:
    """Whether nothing tells of what a rank failed."""
    exit_ = context.trace.ranks[rank].exit
    return rank in context.unrecorded and exit_ is not None and exit_.kind == "code"


def settle(context: Context, causes: list[Cause]) -> list[Cause]:
    """Drop causes that are consequences of others and put the first one first."""
    limit_ns = int(context.trace.timeout_s * SECOND_NS)
    deaths = {
        r: h.end_ns for r, h in context.hosts.items() if h.end is End.CRASHED and not h.secondary
    }
    crashes = [c for c in causes if c.verdict is Verdict.RANK_CRASHED]
    genuine = [c for c in crashes if any(r in deaths for r in c.culprits)]
    kept: list[Cause] = []
    for cause in causes:
        if cause.verdict is Verdict.RANK_CRASHED and genuine and cause not in genuine:
            continue
        if cause.verdict in (
            Verdict.MISSING_RANK,
            Verdict.P2P_UNMATCHED,
            Verdict.STUCK_COLLECTIVE,
            Verdict.DEADLOCK_CYCLE,
            Verdict.RANK_LOST,
            Verdict.INCONCLUSIVE,
        ):
            died = [deaths[r] for c in genuine for r in c.culprits if deaths.get(r)]
            if genuine and (
                not died or not cause.began_ns or min(died) - cause.began_ns < limit_ns
            ):
                for crash in genuine:
                    crash.victims |= (cause.victims | set(cause.culprits)) - set(crash.culprits)
                continue
        kept.append(cause)
    kept = _excuse_lost(context, kept)
    parted = [c for c in kept if c.mismatch is not None or c.conflict]
    result = []
    for cause in kept:
        if cause.mismatch is None and not cause.conflict:
            involved = set(cause.culprits) | cause.victims
            absorbing = [
                m
                for m in parted
                if involved & (set(m.culprits) | m.victims)
                and (not _is_over(m) or _hangs_behind(context, cause, m))
                and not _own_crash_before(context, cause, m)
            ]
            if absorbing:
                for m in absorbing:
                    m.victims |= involved - set(m.culprits)
                continue
        elif _is_over(cause):
            cause.doubt("every member finished it nevertheless")
        result.append(cause)
    named = any(c.culprits and c.mismatch is None for c in result)
    result.sort(
        key=lambda c: (
            _is_over(c) and named,
            c.verdict is Verdict.INCONCLUSIVE,
            _only_logged(context, c),
            c.began_ns or 1 << 62,
            -len(c.victims),
        )
    )
    return result


def _is_over(cause: Cause) -> bool:
    """Whether it is a mismatch that every member has finished."""
    return cause.mismatch is not None and cause.mismatch.completed_by_all


def _hangs_behind(context: Context, cause: Cause, parted: Cause) -> bool:
    """Whether nobody finishes what comes right behind batches that differ.

    Whose batch holds less meets the others' rest with its next operation, and torch may note the
    end of a batch before NCCL has launched it.
    """
    found = parted.mismatch
    if found is None or found.inside < 0 or cause.culprits:
        return False
    stuck = [context.waits.places[i] for i in cause.places]
    return cause.verdict is Verdict.STUCK_COLLECTIVE and any(
        place.group == found.group and place.seq == found.seq + 1 for place in stuck
    )


def _excuse_lost(context: Context, causes: list[Cause]) -> list[Cause]:
    """The causes without ranks of which nothing is left, where something on record is wrong.

    What is on record is enough to hang a job, and a lost rank that shares a group with those whom
    it holds up may be one of them; not where it had been waited for long before that began.
    """
    limit_ns = int(context.trace.timeout_s * SECOND_NS)
    lost = [c for c in causes if c.verdict is Verdict.RANK_LOST or _unrecorded(context, c)]
    shown = [
        c
        for c in causes
        if c not in lost and c.verdict is not Verdict.INCONCLUSIVE and not _is_over(c)
    ]
    for cause in lost:
        groups = [g.ranks for g in context.trace.groups if set(cause.culprits) & set(g.ranks)]
        near = {r for ranks in groups for r in ranks}
        latest_ns = cause.began_ns + limit_ns if cause.began_ns else 1 << 62
        held_up = [
            c for c in shown if near & (set(c.culprits) | c.victims) and c.began_ns < latest_ns
        ]
        if not held_up:
            continue
        causes = [c for c in causes if c is not cause]
        for other in held_up:
            other.victims |= (cause.victims | set(cause.culprits)) - set(other.culprits)
    return causes


def _unrecorded(context: Context, cause: Cause) -> bool:
    """Whether a cause names nobody but ranks that are seen to live and left no record."""
    names = cause.verdict in (Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED) and cause.culprits
    return bool(names) and context.unrecorded.issuperset(cause.culprits)


def _only_logged(context: Context, cause: Cause) -> bool:
    """Whether a log alone says that everybody is in and nobody out.

    A log tells one overdue operation per rank and not what it is queued behind: whoever is named
    by anything else comes first.
    """
    if cause.verdict is not Verdict.STUCK_COLLECTIVE or cause.culprits:
        return False
    rows = [context.waits.places[i].row for i in cause.places]
    flags = context.trace.records["flags"]
    return all(row >= 0 and int(flags[row]) & int(Flag.SYNTHETIC) for row in rows)


def _own_crash_before(context: Context, cause: Cause, mismatch: Cause) -> bool:
    if cause.verdict is not Verdict.RANK_CRASHED:
        return False
    ends = []
    for rank in cause.culprits:
        host = context.hosts.get(rank)
        if host is not None:
            # Of an end that nobody saw only the last sign of life before it is known.
            unseen = is_unseen(context.trace.ranks[rank])
            ends.append(host.end_ns + (_UNSEEN_NS if unseen and host.end_ns else 0))
    return bool(ends) and all(e and mismatch.began_ns and e < mismatch.began_ns for e in ends)
