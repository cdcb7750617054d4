"""Who is to blame for ranks that wait for each other: the cheapest explanation wins.

An explanation accuses some of the ranks. It costs their number, or less where they made the same
mistake; what others did that was not expected of them; what is known in favour of the accused; and
the waiting that would go on without their mistake. Explanations that cost hardly more than the
cheapest one may be true as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.faults.expect import Conduct, conduct_of
from hangscope.diagnosis.graph.cycle_graph import CycleGraph
from hangscope.diagnosis.graph.places import Place
from hangscope.trace.model import NONE

_MISTAKE = 1.0
_SAME_MISTAKE = 0.5
"""A further rank that did the same."""
_OF_NOBODY = 2.0
"""A certain departure of ranks that are not accused."""
_AS_EXPECTED = 1.5
"""Accusing a rank that others, or its past, show to have done as it should."""
_IN_COMPANY = 0.5
"""Accusing a rank that waits in a collective with several others."""
_OWES_NOTHING = 0.5
"""Accusing ranks of which nobody waits for anything left out or, beside halves, for no half: they
would have issued one too many, or put off a collective."""
_STILL_WAITING = 2.0
"""The waiting would go on without the mistakes of the accused."""
_MARGIN = 0.5
SURE = 1.0
"""The weight of a departure that several votes, or one and the past, are against."""
_EPSILON = 1e-6
_SEVERAL = 2
_MOST_RANKS = 64
_MOST_ASKED = 256
_MOST_SIBLINGS = 16


class Outcome(NamedTuple):
    """What the explanations of ranks that wait for each other come to.

    ``accused``: those of the best one; None unless it is better than all others, all ranks that it
    accuses were seen to depart from what was expected of them, and something is known of every
    rank. ``costs``: of each explanation;
    ``seen``: those of which the records show that it may be true; ``as_usual``: ranks that did as
    their own past lets expect.
    """

    accused: frozenset[int] | None
    costs: Mapping[frozenset[int], float]
    seen: frozenset[frozenset[int]]
    as_usual: frozenset[int]

    def leaves(self, accused: Collection[int]) -> bool:
        """Whether no other explanation was seen to be about as good as accusing these.

        One that was not seen must not be better, nor as good if their own past speaks for them.
        """
        own = frozenset(accused)
        cost = self.costs.get(own, 0.0)
        limit = cost + _MARGIN - _EPSILON
        if own <= self.as_usual and any(
            self.costs[one] <= cost for one in self.costs.keys() - {own}
        ):
            return False
        if min(self.costs.values(), default=cost) <= cost - _STILL_WAITING:
            return False
        return all(self.costs[one] >= limit for one in self.seen - {own})


def contest(context: Context, ranks: Collection[int], places: list[Place]) -> Outcome:
    """Try the explanations of why these ranks wait for each other at these places."""
    case = _Case(context, frozenset(ranks), places)
    costs = {accused: case.cost(accused) for accused in case.candidates()}
    best, *others = sorted(costs, key=lambda a: (costs[a], len(a), sorted(a)))
    clear = not others or costs[others[0]] >= costs[best] + _MARGIN - _EPSILON
    seen = frozenset(filter(case.is_seen, costs))
    return Outcome(best if clear and best in seen else None, costs, seen, case.as_usual())


class _Case:
    """Ranks that wait for each other, and what each of them did."""

    def __init__(self, context: Context, ranks: frozenset[int], places: list[Place]) -> None:
        self._ranks = ranks
        self._places = places
        self._is_whole = all(context.on_record.issuperset(place.members) for place in places)
        self._graph = CycleGraph(places, set(ranks))
        self._where = {r: (NONE, i) for i, p in enumerate(places) for r in p.waiters}
        self._by_halves = any(place.p2p for place in places)
        owed = [place for place in places if place.p2p] or places
        self._owing = frozenset(rank for place in owed for rank in place.absent)
        asked = measures(context, ranks, places)
        judged = sorted(ranks)[:_MOST_RANKS]
        self._conduct = {rank: conduct_of(context, rank, ranks, asked) for rank in judged}
        self._conduct = _like_others(self._conduct)

    def candidates(self) -> set[frozenset[int]]:
        """Each rank alone, the ranks at each place, those that did the same, and everybody."""
        conduct = self._conduct
        found = {frozenset([rank]) for rank in conduct}
        found |= {self._ranks.intersection(place.waiters) for place in self._places}
        for what in {its.stands for its in conduct.values()}:
            found.add(frozenset(r for r, its in conduct.items() if its.stands == what))
        odd = {(d.what, r) for r, its in conduct.items() for d in its.departures}
        for what in {what for what, _ in odd}:
            found.add(frozenset(rank for it, rank in odd if it == what))
        found.add(frozenset(r for r, its in conduct.items() if its.worst()[0]))
        found.add(self._ranks)
        return found - {frozenset()}

    def cost(self, accused: frozenset[int]) -> float:
        """What an explanation costs."""
        mistakes: set[tuple[int, int]] = set()
        of_nobody: dict[tuple[int, int], float] = {}
        cost = 0.0
        for rank, its in self._conduct.items():
            weight, departure = its.worst(accused)
            what = (
                (departure.what, NONE)
                if departure is not None
                else self._where.get(rank, (NONE, NONE))
            )
            if rank not in accused:
                of_nobody[what] = max(weight, of_nobody.get(what, 0.0))
                continue
            mistakes.add(what)
            cost += 0.0 if weight else self._in_favour(rank, its, accused)
        cost += _MISTAKE * len(mistakes) + _OF_NOBODY * sum(of_nobody.values())
        if not self._is_one_line(accused):
            cost += _SAME_MISTAKE * (len(accused) - len(mistakes))
        if accused.isdisjoint(self._owing):
            cost += _OWES_NOTHING
        return cost if self._graph.breaks(sorted(accused)) else cost + _STILL_WAITING

    def _in_favour(self, rank: int, its: Conduct, accused: frozenset[int]) -> float:
        """What is known in favour of an accused rank that was not seen to depart."""
        if its.is_measured(accused):
            return _AS_EXPECTED
        here = (place.waiters for place in self._places if rank in place.waiters)
        company = frozenset().union(*here) - accused
        return _IN_COMPANY if len(company) >= _SEVERAL and not self._by_halves else 0.0

    def _is_one_line(self, accused: frozenset[int]) -> bool:
        """Whether all ranks are accused, and all stand in one line that sends or receives.

        Then it is one mistake in everybody's code.
        """
        lines = {its.stands for its in self._conduct.values()}
        return accused == self._ranks and len(lines) == 1 and all(p.p2p for p in self._places)

    def as_usual(self) -> frozenset[int]:
        """Ranks that did as their own past lets expect, and nothing else that was not expected."""
        found = (r for r, its in self._conduct.items() if its.past is False and not its.departures)
        return frozenset(found)

    def is_seen(self, accused: frozenset[int]) -> bool:
        """Whether all of the accused were seen to depart, and something is known of all others.

        If all others did as they had always done, it is enough that the accused did not.
        """
        conduct = self._conduct
        if not accused <= conduct.keys():
            return False
        others = [its for rank, its in conduct.items() if rank not in accused]
        if others and all(its.as_ever and not its.departures for its in others):
            return all(conduct[r].departures or conduct[r].begun for r in accused)
        known = all(its.departures or its.is_measured(accused) for its in conduct.values())
        if not (known and self._is_whole):
            return False  # a member that left no record could stand with either side
        return all(conduct[r].worst(accused)[0] >= SURE for r in accused)


def measures(context: Context, ranks: Collection[int], places: list[Place]) -> list[int]:
    """Ranks with which these may be compared: all, or in a large job some of each kind.

    Those are the members of their groups, and the ranks at their places in sibling groups.
    """
    known = sorted(context.bounds)
    if len(known) <= _MOST_ASKED:
        return known
    suspects = set(sorted(ranks)[:_MOST_RANKS])
    found = dict.fromkeys(sorted(suspects))
    for group in sorted({place.group for place in places if place.group >= 0}):
        members = context.trace.groups[group].ranks
        found |= dict.fromkeys(members[:_MOST_RANKS])
        at = [i for i, rank in enumerate(members) if rank in suspects]
        for other in context.groups_alike[context.kinds[group], len(members)][:_MOST_SIBLINGS]:
            found |= dict.fromkeys(context.trace.groups[other].ranks[i] for i in at)
    return sorted(context.bounds.keys() & list(found)[:_MOST_ASKED])


def _like_others(conduct: Mapping[int, Conduct]) -> dict[int, Conduct]:
    """A rank of which too little is recorded did as others that stand in the same as it."""
    odd = {d.what: d for its in conduct.values() if its.worst()[0] for d in its.departures}
    return {
        rank: replace(its, departures=(odd[its.stands],))
        if its.stands in odd and not its.departures and not its.is_measured()
        else its
        for rank, its in conduct.items()
    }
