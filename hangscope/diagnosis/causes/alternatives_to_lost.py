"""Recorded ranks that explain the waiting as well as a lost rank does, or better (rule 8).

Each function checks one kind of suspicion and returns None if no rank is under it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hangscope.diagnosis.cause import Cause, Words, began, verdict_of
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.collective_order import only_rank_out_of_order
from hangscope.diagnosis.pattern.counterparts import unlike_siblings
from hangscope.diagnosis.pattern.deviations import came_like_siblings, unlike_before
from hangscope.diagnosis.pattern.habits import abandoned_peer, abandoned_size, came_as_usual
from hangscope.diagnosis.pattern.lost_rank_waiters import Deviation, deviations_from_siblings
from hangscope.diagnosis.pattern.step_deviations import has_deviated, skipped_step
from hangscope.diagnosis.processes.process_state import End, in_communication
from hangscope.diagnosis.processes.stacks import innermost, user_frames, where
from hangscope.diagnosis.records.coverage import recorded_ranks
from hangscope.diagnosis.records.pairing import Half
from hangscope.diagnosis.wording.phrases import describe, rank_s, title_of
from hangscope.trace.model import NONE
from hangscope.trace.units import SECOND_NS

_MOST_COMPARED = 64


@dataclass(frozen=True, slots=True)
class LostRanks:
    """Ranks that left nothing, and the places where others wait for them."""

    ranks: tuple[int, ...]
    places: tuple[int, ...]
    began_ns: int
    """When the first rank began to wait for them; 0 if unknown."""


def _instead(lost: LostRanks, verdict: Verdict, suspects: tuple[int, ...]) -> Cause | None:
    """Accuse the suspects alone if they are no more than the lost ranks, which are victims then."""
    if not 0 < len(suspects) <= len(lost.ranks):
        return None
    victims = frozenset(lost.ranks)
    return Cause(verdict, suspects, lost.places, Confidence.LIKELY, lost.began_ns, victims)


def _either(lost: LostRanks, verdict: Verdict, suspects: set[int], words: Words) -> Cause:
    """Accuse suspects and lost ranks: nothing decides between them."""
    both = tuple(sorted({*suspects, *lost.ranks}))
    return Cause(verdict, both, lost.places, Confidence.AMBIGUOUS, lost.began_ns, words=words)


def idle_group_members(context: Context, lost: LostRanks) -> Cause | None:
    """Ranks sharing a group with a lost one that wait for nobody although the job stands still.

    If the lost rank were the cause, they would be waiting for it.
    """
    idle = sorted(
        r
        for r in _neighbours(context, lost)
        if not context.waits.places_of.get(r)
        and not context.processes[r].gone
        and not context.trace.ranks[r].finalized
        and _lags(context, r)
    )
    return _instead(lost, Verdict.MISSING_RANK, tuple(idle))


def early_leavers(context: Context, lost: LostRanks) -> Cause | None:
    """Ranks that ended cleanly after doing less in a group with a lost rank than their counterparts
    in its siblings did."""
    gone = set(lost.ranks)
    shared = [i for i, g in enumerate(context.trace.groups) if not gone.isdisjoint(g.ranks)]
    left = sorted(
        r
        for r in _neighbours(context, lost)
        if context.processes[r].end is End.CLEAN and unlike_siblings(context, r, shared)
    )
    return _instead(lost, Verdict.RANK_EXITED, tuple(left))


def busy_in_own_code(context: Context, lost: LostRanks) -> Cause | None:
    """Ranks sharing a group with a lost one that were in their own code while others waited.

    A victim of the lost rank would wait as well, and their dumps show that they do not.
    """
    standing = [r for r in sorted(_neighbours(context, lost)) if _stood(context, r, lost.began_ns)]
    if not 0 < len(standing) <= len(lost.ranks):
        return None
    at = where(innermost(context.processes[standing[0]].stack))
    words = Words(
        f"{rank_s(standing).capitalize()} stood at {at} all the time that others waited, and "
        f"{rank_s(lost.ranks)}, for whom they wait, left no dump",
        f"{rank_s(lost.ranks)} may wait for {rank_s(standing)}, which waits for nobody",
        f"look at {at} first, and for the process of {rank_s(lost.ranks)}",
    )
    return _either(lost, Verdict.MISSING_RANK, set(standing), words)


def _stood(context: Context, rank: int, began_ns: int) -> bool:
    """Whether the rank was in its own code since before the others' wait, for at least the
    timeout."""
    process, row = context.processes[rank], context.last_row(rank)
    if context.waits.places_of.get(rank) or process.end not in (End.TORN_DOWN, End.UNKNOWN):
        return False
    if row < 0 or context.trace.ranks[rank].finalized or not user_frames(process.stack):
        return False
    issued_ns = int(context.trace.records["created_ns"][row])
    until_ns = process.end_ns or context.now_ns(rank)
    before = 0 < issued_ns < began_ns + SECOND_NS
    long = until_ns - issued_ns >= int(context.trace.timeout_s * SECOND_NS)
    return before and long and not in_communication(process.stack)


def changed_peer(context: Context, lost: LostRanks) -> Cause | None:
    """Ranks whose line names a lost rank as its peer but had always named one other rank before."""
    strange = [h for h in _halves_for(context, lost) if abandoned_peer(context, h) != NONE]
    suspects = {half.rank for half in strange}
    if not 0 < len(suspects) <= len(lost.ranks):
        return None
    half, gone = strange[0], rank_s(lost.ranks)
    at = where(innermost(context.stack(half.row)))
    words = Words(
        f"Rank {half.rank} {_verb(half)} rank {half.peer} at {at}, which had always named another "
        f"rank, and {gone} left no dump",
        f"either rank {half.rank} names the wrong rank, or {gone} did not come",
        f"look at how {at} comes to its partner, and for the process of {gone}",
    )
    return _either(lost, Verdict.P2P_UNMATCHED, suspects, words)


def changed_size(context: Context, lost: LostRanks) -> Cause | None:
    """Ranks that exchange a different size with a lost rank than ever before."""
    unusual = [h for h in _halves_for(context, lost) if abandoned_size(context, h) is not None]
    suspects = {half.rank for half in unusual}
    if not 0 < len(suspects) <= len(lost.ranks):
        return None
    half, gone = unusual[0], rank_s(lost.ranks)
    now = describe(context.signature(half.row))
    words = Words(
        f"Rank {half.rank} {_verb(half)} rank {half.peer} as {now}, where it had always been "
        f"{abandoned_size(context, half)} elements, and {gone} left no dump",
        f"either rank {half.rank} has another size than its partner or {gone} did not come",
        f"look at what decides the size on rank {half.rank}, and for the process of {gone}",
    )
    return _either(lost, Verdict.SHAPE_MISMATCH, suspects, words)


def _halves_for(context: Context, lost: LostRanks) -> list[Half]:
    halves = [place.half for place in context.waits.at(lost.places)]
    return [half for half in halves if half is not None and half.peer in lost.ranks]


def _verb(half: Half) -> str:
    return "sends to" if half.is_send else "receives from"


def deviating_from_siblings(context: Context, lost: LostRanks) -> Cause | None:
    """The one rank that waits for a lost rank where its siblings did something else."""
    limit_ns = int(context.trace.timeout_s * SECOND_NS)
    latest_ns = lost.began_ns + limit_ns if lost.began_ns else 1 << 62
    odd = deviations_from_siblings(context, set(lost.ranks), latest_ns)
    if len(odd) != 1:
        return None
    (left,) = odd
    either = left.aspect == "numel"  # sizes may differ between replicas
    return Cause(
        verdict_of(left.aspect),
        tuple(sorted([left.rank, *lost.ranks])) if either else (left.rank,),
        tuple(context.waits.places_of[left.rank]),
        Confidence.AMBIGUOUS if either else Confidence.LIKELY,
        began(context, lost.places),
        frozenset({*lost.ranks, *context.waits.reachers(lost.ranks, lost.places)}),
        words=_words_of_left(context, left, lost),
    )


def _words_of_left(context: Context, left: Deviation, lost: LostRanks) -> Words:
    its = context.signature(left.row)
    what = "by another way than its counterparts in sibling groups"
    if left.aspect == "pair":
        what = "and has sent or received something else than its counterparts in sibling groups"
    elif its is not None:
        what = f"where its counterparts in sibling groups issued {describe(its)}"
    mine = f" as {describe(context.signature(left.place.row))}" if its is not None else ""
    return Words(
        f"Rank {left.rank} came to {title_of(context, left.place)}{mine}, {what}",
        f"{rank_s(lost.ranks)} left no dump and may wait for it, as others do",
        "compare what that rank runs there with what the same rank of a sibling group runs",
    )


def changed_path(context: Context, lost: LostRanks) -> Cause | None:
    """The one rank that reached its wait for a lost rank in a different way than ever before.

    A rank that deviated holds others up by itself, but so does the lost one.
    """
    rank = _only_deviant(context, lost) if len(lost.ranks) == 1 else None
    if rank is None:
        return None
    own, gone = context.waits.places_of.get(rank, []), rank_s(lost.ranks)
    what = title_of(context, context.waits.places[own[0]]) if own else "where it waits"
    paired = bool(own) and context.waits.places[own[0]].p2p
    words = Words(
        f"Rank {rank} came to {what} by another way than ever before, and {gone}, for whom others "
        "wait, left no dump",
        f"either rank {rank} left out what the others wait for, or {gone} did not come",
        f"look at what rank {rank} ran before that, and for the process of {gone}",
    )
    verdict = Verdict.P2P_UNMATCHED if paired else Verdict.COLLECTIVE_MISMATCH
    return replace(_either(lost, verdict, {rank}, words), places=(*own, *lost.places))


def changed_order(context: Context, lost: LostRanks) -> Cause | None:
    """The one rank that reached two collectives in a different order than all other recorded
    ranks."""
    waiting = sorted(context.waits.reachers(lost.ranks, lost.places) & context.bounds.keys())
    if len(waiting) > _MOST_COMPARED or len(lost.ranks) > 1:
        return None
    own = sorted({i for r in waiting for i in context.waits.places_of.get(r, ())})
    rank = only_rank_out_of_order(context, waiting, context.waits.at(own))
    if rank is None:
        return None
    gone = rank_s(lost.ranks)
    words = Words(
        f"Rank {rank} took another order of collectives than the others, and {gone}, for whom "
        "others wait, left no dump",
        f"either rank {rank} put off what the others wait for, or {gone} did not come",
        f"look at the order of what rank {rank} ran last, and for the process of {gone}",
    )
    cause = _either(lost, Verdict.COLLECTIVE_MISMATCH, {rank}, words)
    return replace(cause, places=(*context.waits.places_of.get(rank, ()), *lost.places))


def _only_deviant(context: Context, lost: LostRanks) -> int | None:
    """The only rank whose wait leads to a lost one and that reached it in a different way than ever
    before, while at least one other rank arrived as usual.

    If all arrived as usual, look for a rank that deviated since it was last in step with the lost
    one, or that left out the collective that ends a step with it.
    """
    gone = list(lost.ranks)
    waiting = sorted(context.waits.reachers(gone, lost.places) & context.bounds.keys())
    if len(waiting) > _MOST_COMPARED:
        return None
    ways = {rank: came_as_usual(context, rank) for rank in waiting}
    left = [rank for rank, as_before in ways.items() if as_before is False]
    behind = [r for r in waiting if skipped_step(context, r, gone)] if not left else []
    if len(behind) == 1 < len(waiting):
        return behind[0]
    for is_unusual in (unlike_before, has_deviated) if not left else ():
        unusual = {r: is_unusual(context, r, [r, *gone]) for r in waiting}
        ways = {r: None if is_new is None else not is_new for r, is_new in unusual.items()}
        left = [r for r in waiting if unusual[r]]
        if left:
            break
    if len(left) != 1 or True not in ways.values() or came_like_siblings(context, left[0]):
        return None
    return left[0]


def _neighbours(context: Context, lost: LostRanks) -> set[int]:
    """Ranks with records that share a group with a lost one."""
    gone = set(lost.ranks)
    beside = {r for g in context.trace.groups if gone & set(g.ranks) for r in g.ranks}
    return beside & recorded_ranks(context.trace)


def _lags(context: Context, rank: int) -> bool:
    """Whether the rank is behind others in one of its groups or in a group of that kind.

    A rank that is as far as any other owes nothing, and of a rank whose dump lists only what is
    unfinished, without a counter, it is not known how far it is.
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
    return not len(context.pairs_of_rank.get(rank, ())) and rank not in context.blank
