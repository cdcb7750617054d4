"""Ranks of which nothing is left and for whom others wait: at fault, or victims like the rest?"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.cause import Cause, Words, began
from hangscope.diagnosis.context import SECOND_NS, Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.habits import came_as_before, left_partner, left_size
from hangscope.diagnosis.pattern.left_pattern import Left, left_pattern
from hangscope.diagnosis.pattern.stretches import lost_step
from hangscope.diagnosis.pattern.yardstick import came_as_siblings, unlike_before, unlike_siblings
from hangscope.diagnosis.processes.host import End, in_communication
from hangscope.diagnosis.processes.stacks import innermost, user_frames, where
from hangscope.diagnosis.records.evidence import cut_short, recorded_ranks
from hangscope.diagnosis.records.pairing import Half
from hangscope.diagnosis.words.phrases import describe, rank_s, title_of
from hangscope.trace.model import NONE

_MOST_COMPARED = 64
_VERDICTS = {
    "numel": Verdict.SHAPE_MISMATCH,
    "dtype": Verdict.DTYPE_MISMATCH,
    "reduce_op": Verdict.ARGUMENT_MISMATCH,
    "root": Verdict.ARGUMENT_MISMATCH,
    "pair": Verdict.P2P_UNMATCHED,
}


def lost_ranks(
    context: Context, lost: list[int], waited_for: dict[int, list[int]], explained: set[int]
) -> list[Cause]:
    """Ranks without a dump, where someone waits for them and nothing else explains it."""
    waits = context.waits
    accused = []
    # Who shares a group with a known cause may well be waiting for it too.
    excused = {
        r
        for place in waits.places
        if explained.intersection(place.waiters)
        for r in place.unknown
        if place.absent or place.behind
    }
    for rank in lost:
        if rank in excused:
            continue
        waiters = {w for i in waited_for[rank] for w in waits.places[i].waiters}
        if waiters - explained:
            accused.append(rank)
    made_up = any(not g.ranks for g in context.trace.groups)
    unread = context.unreadable
    if not unread.keys() >= set(accused):
        accused = [r for r in accused if r not in unread]  # those have lived to write something
    nameless = made_up or any(s.version == "none" for s in context.trace.sources)
    if not accused or (made_up and explained) or (nameless and unread.keys() >= set(accused)):
        return []  # who shares a group with the known cause is not listed
    places = sorted({i for r in accused for i in waited_for[r]})
    idle = _idle_beside(context, accused)
    if 0 < len(idle) <= len(accused):
        # Were the lost rank the cause, its neighbours would be waiting for it.
        cause = Cause(Verdict.MISSING_RANK, idle, places, Confidence.LIKELY, began(context, places))
        cause.victims = set(accused)
        return [cause]
    left = _left_beside(context, accused)
    if 0 < len(left) <= len(accused):
        cause = Cause(Verdict.RANK_EXITED, left, places, Confidence.LIKELY, began(context, places))
        cause.victims = set(accused)
        return [cause]
    first_ns = began(context, places)
    total = len(set(context.trace.ranks) | set(context.gaps))
    # Half a world without dumps is a collection that failed, or one node's log: who of the missing
    # is waited for says nothing about what the others of them do.
    beyond = _beyond(context, total)
    silent = max(len(accused), len(context.gaps)) + beyond
    total += beyond
    if silent * 2 >= total and (silent > 1 or _one_rank_s_log(context)):
        cause = Cause(Verdict.INCONCLUSIVE, (), places, Confidence.LIKELY, first_ns)
        cause.unknowns.append(f"{silent} of {total} ranks left no dump")
        cause.victims = {w for i in places for w in waits.places[i].waiters}
        return [cause]
    if cut_short(context.trace):
        cause = Cause(Verdict.INCONCLUSIVE, (), places, Confidence.LIKELY, first_ns)
        cause.unknowns.append(f"{rank_s(accused)} may have spoken in what is left out of this log")
        cause.victims = {w for i in places for w in waits.places[i].waiters}
        return [cause]
    elsewhere = _standing_elsewhere(context, accused, first_ns)
    if 0 < len(elsewhere) <= len(accused):
        return [_beside(context, elsewhere, accused, places)]
    halves = _halves_for(context, accused, places)
    strange = [half for half in halves if left_partner(context, half) != NONE]
    if 0 < len({half.rank for half in strange}) <= len(accused):
        return [_another_partner(context, strange, accused, places)]
    unusual = [half for half in halves if left_size(context, half) is not None]
    if 0 < len({half.rank for half in unusual}) <= len(accused):
        return [_another_size(context, unusual, accused, places)]
    limit_ns = int(context.trace.timeout_s * SECOND_NS)
    odd = left_pattern(context, set(accused), first_ns + limit_ns if first_ns else 1 << 62)
    if len(odd) == 1:
        return [_left_pattern(context, odd[0], accused, places)]
    astray = _left_its_way(context, accused, places)
    if astray is not None and len(accused) == 1:
        return [_by_another_way(context, astray, accused, places)]
    alone = len(accused) == 1 and not beyond
    confidence = Confidence.LIKELY if alone else Confidence.AMBIGUOUS
    return [Cause(Verdict.RANK_LOST, tuple(sorted(accused)), places, confidence, first_ns)]


def _left_pattern(context: Context, left: Left, lost: list[int], places: list[int]) -> Cause:
    """One who waits for a lost rank where its siblings did something else explains the waiting."""
    cause = Cause(
        _VERDICTS.get(left.aspect, Verdict.COLLECTIVE_MISMATCH),
        (left.rank,),
        [*context.waits.places_of[left.rank]],
        Confidence.LIKELY,
        began(context, places),
        {*lost, *context.waits.reachers(lost, places)},
    )
    if left.aspect == "numel":  # sizes may differ from replica to replica
        cause.culprits = tuple(sorted([left.rank, *lost]))
        cause.confidence = Confidence.AMBIGUOUS
    where = title_of(context, left.place)
    its = context.signature(left.row)
    what = "by another way than its counterparts in sibling groups"
    if left.aspect == "pair":
        what = "and has sent or received something else than its counterparts in sibling groups"
    elif its is not None:
        what = f"where its counterparts in sibling groups issued {describe(its)}"
    mine = f" as {describe(context.signature(left.place.row))}" if its is not None else ""
    cause.words = Words(
        f"Rank {left.rank} came to {where}{mine}, {what}",
        f"{rank_s(lost)} left no dump and may wait for it, as others do",
        "compare what that rank runs there with what the same rank of a sibling group runs",
    )
    return cause


def _left_its_way(context: Context, lost: list[int], places: list[int]) -> int | None:
    """The only one of those who wait, in the end, for a lost rank that came to where it waits by
    another way than ever before, where somebody else came as always.

    Where all came there as always, it may have left the way since it was together with the lost
    rank, or have left out what ends a step with it.
    """
    waiting = sorted(context.waits.reachers(lost, places) & context.bounds.keys())
    if len(waiting) > _MOST_COMPARED:
        return None
    ways = {rank: came_as_before(context, rank) for rank in waiting}
    left = [rank for rank, as_before in ways.items() if as_before is False]
    behind = [r for r in waiting if lost_step(context, r, lost)] if not left else []
    if len(behind) == 1 < len(waiting):
        return behind[0]
    if not left:
        new = {r: unlike_before(context, r, [r, *lost]) for r in waiting}
        ways = {r: None if is_new is None else not is_new for r, is_new in new.items()}
        left = [r for r in waiting if new[r]]
    if len(left) != 1 or True not in ways.values() or came_as_siblings(context, left[0]):
        return None
    return left[0]


def _by_another_way(context: Context, rank: int, lost: list[int], places: list[int]) -> Cause:
    """Who left its way holds others up by itself, and so does a rank that is gone."""
    both = tuple(sorted({rank, *lost}))
    own = context.waits.places_of.get(rank, [])
    paired = bool(own) and context.waits.places[own[0]].p2p
    cause = Cause(
        Verdict.P2P_UNMATCHED if paired else Verdict.COLLECTIVE_MISMATCH,
        both,
        [*own, *places],
        Confidence.AMBIGUOUS,
        began(context, places),
    )
    what = title_of(context, context.waits.places[own[0]]) if own else "where it waits"
    cause.words = Words(
        f"Rank {rank} came to {what} by another way than ever before, and {rank_s(lost)}, for whom "
        "others wait, left no dump",
        f"either rank {rank} left out what the others wait for, or {rank_s(lost)} did not come",
        f"look at what rank {rank} ran before that, and for the process of {rank_s(lost)}",
    )
    return cause


def _standing_elsewhere(context: Context, lost: list[int], first_ns: int) -> tuple[int, ...]:
    """Ranks in a group with a lost one that stood in their own code for as long as others waited.

    A victim of the lost rank would wait as well, and its own dump shows that it does not.
    """
    limit_ns = int(context.trace.timeout_s * SECOND_NS)
    found = []
    for rank in sorted(_neighbours(context, lost)):
        host, row = context.hosts[rank], context.last_row(rank)
        if context.waits.places_of.get(rank) or host.end not in (End.TORN_DOWN, End.UNKNOWN):
            continue
        if row < 0 or context.trace.ranks[rank].finalized or not user_frames(host.stack):
            continue
        issued_ns = int(context.trace.records["created_ns"][row])
        until_ns = host.end_ns or context.now_ns(rank)
        before = 0 < issued_ns < first_ns + SECOND_NS
        if before and until_ns - issued_ns >= limit_ns and not in_communication(host.stack):
            found.append(rank)
    return tuple(found)


def _beside(
    context: Context, elsewhere: tuple[int, ...], lost: list[int], places: list[int]
) -> Cause:
    """Nothing tells whether a lost rank or one that stands in its own code is waited for."""
    both = tuple(sorted({*elsewhere, *lost}))
    cause = Cause(Verdict.MISSING_RANK, both, places, Confidence.AMBIGUOUS, began(context, places))
    at = where(innermost(context.hosts[elsewhere[0]].stack))
    cause.words = Words(
        f"{rank_s(elsewhere).capitalize()} stood at {at} all the time that others waited, and "
        f"{rank_s(lost)}, for whom they wait, left no dump",
        f"{rank_s(lost)} may wait for {rank_s(elsewhere)}, which waits for nobody",
        f"look at {at} first, and for the process of {rank_s(lost)}",
    )
    return cause


def _halves_for(context: Context, lost: list[int], places: list[int]) -> list[Half]:
    halves = [context.waits.places[i].half for i in places]
    return [half for half in halves if half is not None and half.peer in lost]


def _another_partner(
    context: Context, strange: list[Half], lost: list[int], places: list[int]
) -> Cause:
    """Who names another partner than ever before explains the waiting as well as a lost one."""
    both = tuple(sorted({*lost, *(half.rank for half in strange)}))
    cause = Cause(Verdict.P2P_UNMATCHED, both, places, Confidence.AMBIGUOUS, began(context, places))
    half = strange[0]
    at = where(innermost(context.stack(half.row)))
    what = "sends to" if half.is_send else "receives from"
    cause.words = Words(
        f"Rank {half.rank} {what} rank {half.peer} at {at}, which had always named another rank, "
        f"and {rank_s(lost)} left no dump",
        f"either rank {half.rank} names the wrong rank, or {rank_s(lost)} did not come",
        f"look at how {at} comes to its partner, and for the process of {rank_s(lost)}",
    )
    return cause


def _another_size(
    context: Context, unusual: list[Half], lost: list[int], places: list[int]
) -> Cause:
    """Who exchanges another size than ever before explains the waiting as well as a lost one."""
    both = tuple(sorted({*lost, *(half.rank for half in unusual)}))
    cause = Cause(
        Verdict.SHAPE_MISMATCH, both, places, Confidence.AMBIGUOUS, began(context, places)
    )
    half = unusual[0]
    what = "sends to" if half.is_send else "receives from"
    now = describe(context.signature(half.row))
    cause.words = Words(
        f"Rank {half.rank} {what} rank {half.peer} as {now}, where it had always been "
        f"{left_size(context, half)} elements, and {rank_s(lost)} left no dump",
        f"either rank {half.rank} has another size than its partner or {rank_s(lost)} did not come",
        f"look at what decides the size on rank {half.rank}, and for the process of {rank_s(lost)}",
    )
    return cause


def _beyond(context: Context, total: int) -> int:
    """How many more ranks than those up to the last that was heard of there must be.

    Hardly any job has an odd number of ranks: where only a log speaks, and states no size, the one
    behind the last is silent as well.
    """
    stated = any(facts.world_size for facts in context.trace.ranks.values())
    return int(context.trace.only_logs and not stated and total > 1 and total % 2 == 1)


def _one_rank_s_log(context: Context) -> bool:
    """Whether all that was given is what one rank printed: it says nothing of the others."""
    return len(context.trace.ranks) < 2 and context.trace.only_logs


def _idle_beside(context: Context, lost: list[int]) -> tuple[int, ...]:
    """Ranks in a group with a lost one that wait for nobody although the job stands still."""
    return tuple(
        sorted(
            r
            for r in _neighbours(context, lost)
            if not context.waits.places_of.get(r)
            and not context.hosts[r].gone
            and not context.trace.ranks[r].finalized
            and _lags(context, r)
        )
    )


def _left_beside(context: Context, lost: list[int]) -> tuple[int, ...]:
    """Ranks that ended well after they had done less in a group with a lost one than their
    counterparts in its siblings did."""
    shared = [i for i, g in enumerate(context.trace.groups) if not set(lost).isdisjoint(g.ranks)]
    return tuple(
        sorted(
            r
            for r in _neighbours(context, lost)
            if context.hosts[r].end is End.CLEAN and unlike_siblings(context, r, shared)
        )
    )


def _neighbours(context: Context, lost: list[int]) -> set[int]:
    """Ranks that left a record and share a group with a lost one."""
    gone = set(lost)
    beside = {r for g in context.trace.groups if gone & set(g.ranks) for r in g.ranks}
    return beside & recorded_ranks(context.trace)


def _lags(context: Context, rank: int) -> bool:
    """Whether the rank is less far in one of its groups than others are in groups of that kind.

    One that is as far as anybody has no part of its own left to do.
    """
    front, groups = context.front, context.trace.groups
    for pair in context.pairs_of_rank.get(rank, ()):
        group = int(front.group[pair])
        desc = groups[group].desc
        kind = [group]
        if desc and desc not in ("default_pg", "undefined"):
            kind = [i for i, g in enumerate(groups) if g.desc == desc]
        furthest = int(front.enqueued[np.isin(front.group, kind)].max())
        if front.enqueued[pair] < furthest:
            return True
    return not len(context.pairs_of_rank.get(rank, ()))
