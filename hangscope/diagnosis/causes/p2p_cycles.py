"""Cycles of waiting that include sends or receives: did one rank leave its half out?"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.causes.dropped_halves import blamed_for_dropping
from hangscope.diagnosis.causes.left_over_halves import explained_by_left_over
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.faults.contest import contest
from hangscope.diagnosis.graph.cycle_graph import CycleGraph
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import NONE


class Row(NamedTuple):
    """The ranks of a cycle, and those of equally shaped ones beside it.

    A row of ranks has made one mistake then, and the graph singles out none of them.
    """

    ranks: frozenset[int]
    fellows: frozenset[int]


def weighed(context: Context, cause: Cause, row: Row, shown: tuple[int, ...]) -> Cause | None:
    """The cycle with those to blame; None if nothing decides.

    Whom its shape shows (``shown``) counts unless another explanation was seen to be as good.
    """
    everybody = row.ranks | row.fellows
    indices = sorted({i for rank in everybody for i in context.waits.out(rank)})
    places = [p for p in context.waits.at(indices) if not everybody.isdisjoint(p.targets)]
    outcome = contest(context, everybody, places)
    blamed = tuple(sorted((outcome.accused or frozenset()) & row.ranks))
    if shown and blamed in ((), shown):
        return replace(cause, culprits=shown) if outcome.leaves(shown) else None
    return replace(cause, culprits=blamed, confidence=Confidence.LIKELY) if blamed else None


def p2p_cycle_cause(context: Context, cause: Cause, row: Row) -> Cause:
    """Decide who is to blame for a cycle with sends or receives; so far all its ranks are
    accused."""
    waits, ranks = context.waits, set(row.ranks)
    # A half issued after a host's first one is not due yet: nobody has left it out.
    first = _first_halves(context, ranks)
    halves = [i for i in cause.places if waits.places[i].p2p]
    unmatched = [i for i in halves if _stands_at(context, waits.places[i], first)] or halves
    places = context.waits.at(sorted(cause.places))
    settled = blamed_for_dropping(context, cause) or explained_by_left_over(context, cause, ranks)
    if settled is not None:
        return settled
    ahead = _gone_ahead(places, ranks)
    shown = ahead or _without_half(context, row, places, unmatched)
    if len(ahead) > 1 or (shown and not ahead and len(ranks) > 2 and ranks & context.hidden):
        cause = replace(cause, confidence=Confidence.LIKELY)
    settled = weighed(context, cause, row, shown)
    if settled is not None:
        return settled if settled.culprits == ahead else pointing_to_halves(context, settled)
    return _one_mistake_of_all(context, cause, ranks, places, unmatched)


def _gone_ahead(places: list[Place], ranks: set[int]) -> tuple[int, ...]:
    """The one rank, or the few, that wait for the rest of the cycle in collectives."""
    graph = CycleGraph(places, ranks)
    one = graph.breakers if len(graph.breakers) == 1 < len(ranks) - 1 else set()
    few = one or set(graph.smallest_side)
    alone = few and _in_collectives(places, ranks, few)
    # Other ranks that arrived there without holding anybody up may be right to be there.
    return tuple(sorted(few)) if alone and set(_who_wait_with(places, few)) == few else ()


def _without_half(
    context: Context, row: Row, places: list[Place], unmatched: list[int]
) -> tuple[int, ...]:
    """The rank that went on without its half, or whose removal breaks the cycle; only for cycles
    with collectives."""
    if len(unmatched) == len(places) or row.fellows:
        return ()
    odd = _went_on_without_half(context, set(row.ranks), unmatched)
    if odd and (len(row.ranks) == 2 or len(odd) > 1) and _may_be_either(context, row, unmatched):
        return ()
    if odd:
        return odd
    breakers = CycleGraph(places, set(row.ranks)).breakers
    return tuple(breakers) if len(breakers) == 1 else ()


def _may_be_either(context: Context, row: Row, unmatched: list[int]) -> bool:
    """Whether either of two ranks may have done too much or too little.

    That is so if a whole row of halves is missing rather than one, or if nothing shows what came
    before and nobody's halves were counted.
    """
    here, numbers = context.waits.at(unmatched), context.trace.records["p2p_seq"]
    missing = {place.seq for place in here} | {
        int(numbers[half.row])
        for half in context.pending_halves
        for place in here
        if half.rank in place.waiters and half.peer in place.absent and half.row < place.row
        if half.matched is False
    }
    blank = not context.unfinished_alone.isdisjoint(row.ranks)
    counted = any(p.half is not None and p.half.peer == NONE for p in here)
    return len(missing) > 1 or (blank and not counted)


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


def _went_on_without_half(
    context: Context, ranks: set[int], unmatched: list[int]
) -> tuple[int, ...]:
    """Ranks that left their half out and went on to something that needs the waiting side.

    Several did so only if each waits where its own partner has arrived but is held up by that half.
    A partner that has not arrived there may have left something out itself.
    """
    places = context.waits.at(sorted(unmatched))
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
