"""Recorded ranks that explain the waiting as well as a lost rank does, or better.

Each function checks one kind of suspicion and returns None if no rank is under it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.cause import Cause, Words, began, verdict_of
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.lost_rank_waiters import Deviation, deviations_from_siblings
from hangscope.diagnosis.records.coverage import recorded_ranks
from hangscope.diagnosis.wording.phrases import describe, rank_s, title_of
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
    mine, theirs = (describe(context.signature(row)) for row in (left.place.row, left.row))
    return Words(
        f"Rank {left.rank} came to {title_of(context, left.place)} as {mine}, where its "
        f"counterparts in sibling groups issued {theirs}",
        f"{rank_s(lost.ranks)} left no dump and may wait for it, as others do",
        "compare what that rank runs there with what the same rank of a sibling group runs",
    )


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
