"""Cycles of waiting that include sends or receives: did one rank leave its half out?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from hangscope.diagnosis.cause import Cause, rank_list
from hangscope.diagnosis.causes.cycle_breakers import breakers_of, places_at, smallest_breaking_side
from hangscope.diagnosis.causes.dropped_halves import blamed_for_dropping
from hangscope.diagnosis.causes.left_over_halves import explained_by_left_over
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.collective_order import collective_first
from hangscope.diagnosis.pattern.counterparts import has_measure
from hangscope.diagnosis.pattern.deviations import deviants, ran_ahead
from hangscope.diagnosis.pattern.operation_totals import outliers_by_total
from hangscope.diagnosis.pattern.pipeline_stages import OddStage, odd_stage
from hangscope.diagnosis.pattern.step_deviations import deviating_rank, left_routine, out_of_step
from hangscope.trace.model import NONE


@dataclass(frozen=True)
class _Cycle:
    """A cycle of waiting; so far all its ranks are accused."""

    context: Context
    cause: Cause
    ranks: set[int]
    groups: set[int]
    """Group indices of its places."""
    fellow_suspects: frozenset[int]
    """Ranks of equally shaped cycles beside it. If there are any, the graph singles out no rank."""
    places: list[Place]
    unmatched: list[int]
    """Indices of the places of halves that are due and unmatched."""

    @cached_property
    def strayed(self) -> tuple[int, ...]:
        """The only rank that did something else than in its earlier steps, which were all alike."""
        return () if self.is_blank else left_routine(self.context, self.ranks)

    @property
    def is_blank(self) -> bool:
        """Whether the dump of some rank lists only unfinished operations, so nothing can be
        compared."""
        known = self.context.trace.ranks
        return any(r in known and known[r].only_active for r in self.ranks)


def p2p_cycle_cause(
    context: Context,
    cause: Cause,
    ranks: set[int],
    groups: set[int],
    fellow_suspects: frozenset[int],
) -> Cause:
    """Decide who is to blame for a cycle with sends or receives; so far all its ranks are accused.

    Parameters
    ----------
    context:
        The trace and what was derived from it.
    cause:
        The cycle.
    ranks, groups:
        Its ranks, and the group indices of its places.
    fellow_suspects:
        The ranks of equally shaped cycles beside it.
    """
    waits = context.waits
    # A half issued after a host's first one is not due yet: nobody has left it out.
    first = _first_halves(context, ranks)
    halves = [i for i in cause.places if waits.places[i].p2p]
    unmatched = [i for i in halves if _stands_at(context, waits.places[i], first)] or halves
    places = places_at(context, cause.places)
    cycle = _Cycle(context, cause, ranks, groups, fellow_suspects, places, unmatched)
    for settle in _STRATEGIES:
        settled = settle(cycle)
        if settled is not None:
            return settled
    return _one_mistake_of_all(context, cause, ranks, places, unmatched)


def _blame_ahead(cycle: _Cycle) -> Cause | None:
    """Blame the ranks that left a collective out."""
    context, cause = cycle.context, cycle.cause
    ahead = _skipped_collective(context, cause, cycle.unmatched)
    if not ahead or cycle.strayed not in ((), ahead):
        return None  # it did as in every earlier step, and another one alone did not
    return _accusing(cause, ahead, alone=True)


def _deviating(cycle: _Cycle) -> Cause | None:
    """Blame ranks that deviated from their counterparts or from their own past."""
    context, cause, ranks = cycle.context, cycle.cause, cycle.ranks
    stage = odd_stage(context, ranks, cycle.groups)
    if stage is not None:
        return pointing_to_halves(
            context, _accusing(cause.with_evidence(_often(stage)), (stage.rank,), alone=True)
        )
    # Finished operations must be recorded to be compared.
    odd = () if cycle.is_blank else deviants(context, ranks, cycle.groups, cycle.fellow_suspects)
    closed = _closed_cycle(context, set(odd)) if odd else set()
    if len(odd) == 1 and len({has_measure(context, r, cycle.groups) for r in closed}) == 1:
        closed = set()  # the others do not differ, or it is its own past that speaks against it
    if closed:
        # These wait for each other; another receiver there may just wait for a rank that deviated.
        return _accusing(cause, tuple(sorted(closed)), alone=len(closed) == len(odd))
    if len(odd) * 2 > len(ranks):
        odd = ()  # if most deviated, it is everybody's code
    odd = odd or outliers_by_total(context, ranks, cycle.groups, cycle.fellow_suspects)
    # A rank that deviated keeps members of its groups from reaching theirs.
    return pointing_to_halves(context, _accusing(cause, odd, alone=len(odd) == 1)) if odd else None


def _different_order(cycle: _Cycle) -> Cause | None:
    """Blame the rank that reached a collective and a half in a different order."""
    if cycle.fellow_suspects:
        return None
    astray = _against_counterparts(cycle.context, cycle.ranks, cycle.places)
    if len(astray) != 1:
        return None
    cause = _accusing(cycle.cause, astray, alone=True)
    owes = any(p.p2p and astray[0] in p.absent for p in cycle.places)
    return pointing_to_halves(cycle.context, cause) if owes else cause


def _blame_missing_half(cycle: _Cycle) -> Cause | None:
    """Blame the rank that went on without its half, or whose removal breaks the cycle; only for
    cycles with collectives."""
    context, cause, ranks, unmatched = cycle.context, cycle.cause, cycle.ranks, cycle.unmatched
    if len(unmatched) == len(cause.places) or cycle.fellow_suspects:
        return None
    odd = _went_on_without_half(context, ranks, unmatched)
    if len(odd) > 1 and _outnumber(context, odd, unmatched):
        return None  # the fewer ranks that wait for them may have gone on too early
    if cycle.strayed and (odd != cycle.strayed or _may_be_either(cycle)):
        return pointing_to_halves(context, _accusing(cause, cycle.strayed, alone=True))
    if odd and (len(ranks) == 2 or len(odd) > 1) and _may_be_either(cycle):
        return replace(cause, confidence=Confidence.AMBIGUOUS)
    if odd:
        hidden = len(ranks) > 2 and bool(ranks & context.hidden)
        sure = Confidence.LIKELY if hidden else cause.confidence
        return pointing_to_halves(context, replace(cause, culprits=odd, confidence=sure))
    breakers = breakers_of(cycle.places, ranks)
    return replace(cause, culprits=(breakers[0],)) if len(breakers) == 1 else None


def _outnumber(context: Context, odd: tuple[int, ...], unmatched: list[int]) -> bool:
    """Whether these are more than the ranks that wait for them, each for partners that it names."""
    here = [context.waits.places[i] for i in unmatched]
    waiting = {rank for place in here for rank in place.waiters}
    named = all(place.half is not None and place.half.peer != NONE for place in here)
    return named and len(odd) > len(waiting)


def _may_be_either(cycle: _Cycle) -> bool:
    """Whether either of two ranks may have done too much or too little.

    That is so if a whole row of halves is missing rather than one, or if nothing shows what came
    before and nobody's halves were counted.
    """
    row = len(_unmatched_numbers(cycle)) > 1
    counted = any(p.half is not None and p.half.peer == NONE for p in cycle.places)
    return row or (cycle.is_blank and not counted)


def _unmatched_numbers(cycle: _Cycle) -> set[int]:
    """The numbers of the halves that are missing: those that are waited for, and those before."""
    here = cycle.context.waits.at(cycle.unmatched)
    numbers = cycle.context.trace.records["p2p_seq"]
    earlier = {
        int(numbers[half.row])
        for half in cycle.context.pending_halves
        for place in here
        if half.rank in place.waiters and half.peer in place.absent and half.row < place.row
        if half.matched is False
    }
    return earlier.union(place.seq for place in here)


def _blame_unusual_step(cycle: _Cycle) -> Cause | None:
    """Blame ranks whose last step did not repeat an earlier one."""
    if cycle.is_blank:
        return None
    odd = deviating_rank(cycle.context, cycle.ranks) or out_of_step(cycle.context, cycle.ranks)
    if not odd:
        return None
    return pointing_to_halves(cycle.context, _accusing(cycle.cause, odd, alone=True))


def _blame_dropped_half(cycle: _Cycle) -> Cause | None:
    """Blame ranks that dropped the Work of a half for which another one waits."""
    return blamed_for_dropping(cycle.context, cycle.cause)


def _blame_left_over(cycle: _Cycle) -> Cause | None:
    """Blame the ranks that alone explain halves left over from what all have finished."""
    return explained_by_left_over(cycle.context, cycle.cause, cycle.ranks)


def _accusing(cause: Cause, culprits: tuple[int, ...], *, alone: bool) -> Cause:
    """The cycle with these culprits; ``alone``: none of them may just be waiting for another."""
    confidence = Confidence.LIKELY if alone else Confidence.AMBIGUOUS
    return replace(cause, culprits=culprits, confidence=confidence)


def _blame_gone_ahead(cycle: _Cycle) -> Cause | None:
    """Blame the one rank, or the few, that wait for the rest of the cycle in collectives."""
    cause, ranks, places = cycle.cause, cycle.ranks, cycle.places
    breakers = breakers_of(places, ranks)
    one = set(breakers) if len(breakers) == 1 < len(ranks) - 1 else set()
    if one and _in_collectives(places, ranks, one) and len(_who_wait_with(places, one)) == 1:
        return replace(cause, culprits=tuple(one))
    few = set(smallest_breaking_side(places, ranks))
    if len(few) > 1 and _in_collectives(places, ranks, few):
        # Other ranks that arrived there without holding anybody up may be right to be there.
        there = _who_wait_with(places, few)
        return _accusing(cause, there, alone=len(there) == len(few))
    return None


_STRATEGIES: tuple[Callable[[_Cycle], Cause | None], ...] = (
    _blame_dropped_half,
    _blame_left_over,
    _blame_ahead,
    _blame_gone_ahead,
    _deviating,
    _different_order,
    _blame_missing_half,
    _blame_unusual_step,
)
"""Ways to settle a cycle, strongest evidence first; each returns None if it settles nothing."""


def _often(stage: OddStage) -> str:
    """How often the odd rank and the others reached a line, in words."""
    others = f"{rank_list(stage.others)} {stage.usual} times"
    return f"rank {stage.rank} came to {stage.line} {stage.times} times, {others} each"


def pointing_to_halves(context: Context, cause: Cause) -> Cause:
    """Point out halves that the accused left out and others wait for, on the cycle or behind it."""
    accused, places = set(cause.culprits), context.waits.places
    due = [i for i, p in enumerate(places) if p.p2p and not accused.isdisjoint(p.targets)]
    return replace(cause, verdict=Verdict.P2P_UNMATCHED).with_first(due) if due else cause


def _one_mistake_of_all(
    context: Context, cause: Cause, ranks: set[int], places: list[Place], unmatched: list[int]
) -> Cause:
    """No rank stands out. Only if all do the same can it be one mistake in everybody's code."""
    # If some have issued everything the others need, one mistake may be behind it all.
    lacking = {r for p in places for r in p.absent}
    # The same goes if they wait at different lines, also of a framework (one user line may run a
    # whole schedule of stages): then no loop is wrong for all.
    stacks = {context.stack(p.row) for p in places}
    one_kind = len(unmatched) == len(cause.places) and len(stacks) == 1 and () not in stacks
    if one_kind and not ranks - lacking and not ranks & context.hidden:
        return cause
    ends = _ends_of_missing_exchange(places, ranks) or cause.culprits
    return replace(cause, culprits=ends, confidence=Confidence.AMBIGUOUS)


def _first_halves(context: Context, ranks: set[int]) -> dict[int, int]:
    """Per rank the row of the first half it waits in."""
    found = {}
    for rank in ranks:
        places = _waits_of(context, rank)
        found[rank] = min((p.row for p in places if p.p2p and not p.weak), default=NONE)
    return found


def _stands_at(context: Context, place: Place, first: dict[int, int]) -> bool:
    """Whether a waiter of this half waits in no earlier batch or call."""
    batch = context.front.batch_row
    return any(
        first.get(rank, NONE) in (NONE, place.row) or NONE != batch[first[rank]] == batch[place.row]
        for rank in place.waiters
    )


def _ends_of_missing_exchange(places: list[Place], ranks: set[int]) -> tuple[int, ...]:
    """The ranks between which something was never issued, if everything else on the cycle was.

    The others are merely queued: they have issued what their partners have issued.
    """
    missing = [p for p in places if p.absent or not p.behind]
    ends = {r for p in missing for r in (*p.waiters, *p.targets)} & ranks
    between = {frozenset((frozenset(p.waiters), frozenset(p.targets))) for p in missing}
    return tuple(sorted(ends)) if len(between) == 1 and 1 < len(ends) < len(ranks) else ()


def _in_collectives(places: list[Place], ranks: set[int], few: set[int]) -> bool:
    """Whether these ranks of a cycle wait only in collectives, for all ranks that wait for them
    elsewhere.

    They have gone on to later operations, and nobody has followed.
    """
    own = [p for p in places if not few.isdisjoint(p.waiters)]
    return bool(own) and all(not p.p2p and ranks.intersection(p.waiters) == few for p in own)


def _who_wait_with(places: list[Place], few: set[int]) -> tuple[int, ...]:
    """These and all other ranks at the same places."""
    return tuple(sorted(few.union(*(p.waiters for p in places if not few.isdisjoint(p.waiters)))))


def _skipped_collective(context: Context, cause: Cause, unmatched: list[int]) -> tuple[int, ...]:
    """Ranks at a p2p number no counterpart has reached, while most others wait in a collective.

    They skipped a collective and went on. They may have issued one of that number since, behind the
    halves in which they wait. Counterparts that are late for it as well are just as suspect.
    """
    waits = context.waits
    due = [place for place in waits.at(cause.places) if not place.p2p]
    late_of = [(frozenset((*p.absent, *p.behind)), p) for p in due]
    found = set()
    for place in waits.at(unmatched):
        for rank in place.waiters:
            if any(
                rank in late
                and len(p.waiters) > len(late)
                and ran_ahead(context, rank, place.group, place.seq, late)
                for late, p in late_of
            ):
                found.add(rank)
    return tuple(sorted(found))


def _against_counterparts(
    context: Context, ranks: set[int], places: list[Place]
) -> tuple[int, ...]:
    """Ranks that reached a collective and a half in a different order than their counterparts; both
    ranks concerned must be on the cycle."""
    at = {(p.group, r): p for p in places if not p.p2p and p.group >= 0 for r in p.waiters}
    odd = set()
    for pair in (p for p in places if p.half is not None and len(p.absent) == len(p.waiters) == 1):
        (waiting,), (wanted,) = pair.waiters, pair.absent
        place = at.get((pair.group, wanted))
        if place is not None and waiting in place.absent and {waiting, wanted} <= ranks:
            first = collective_first(context, place, pair)
            odd |= {waiting} if first else {wanted} if first is False else set()
    return tuple(odd)


def _went_on_without_half(
    context: Context, ranks: set[int], unmatched: list[int]
) -> tuple[int, ...]:
    """Ranks that left their half out and went on to something that needs the waiting side.

    Several did so only if each waits where its own partner has arrived but is held up by that half.
    A partner that has not arrived there may have left something out itself.
    """
    places = places_at(context, unmatched)
    waiting = {r for place in places for r in place.waiters}
    wanted = {r for place in places for r in place.absent} & ranks
    ends = wanted - waiting
    if len(ends) == 1:
        (end,) = ends
        needs = {t for place in _waits_of(context, end) for t in place.targets}
        return (end,) if needs & waiting else ()
    if wanted != ends:
        return ()
    for end in ends:
        partners = {r for place in places if end in place.absent for r in place.waiters}
        if not any(partners.intersection(p.behind) for p in _waits_of(context, end)):
            return ()
    return tuple(sorted(ends))


def _waits_of(context: Context, rank: int) -> list[Place]:
    """Where a rank waits."""
    return context.waits.at(context.waits.out(rank))


def _closed_cycle(context: Context, ranks: set[int]) -> set[int]:
    """The cycle of receives that contains ``ranks``, if each waits for a rank that never sent."""
    closed, queue = set(ranks), list(ranks)
    while queue:
        wanted = {
            t for place in _waits_of(context, queue.pop()) if place.p2p for t in place.targets
        }
        if not wanted:
            return set()
        queue += wanted - closed
        closed |= wanted
    return closed
