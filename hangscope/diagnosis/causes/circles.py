"""Circles of waiting: who has to be taken out to break them?"""

from __future__ import annotations

from collections import defaultdict

from hangscope.diagnosis.cause import Cause, began, rank_list
from hangscope.diagnosis.causes.case_against import WHO_SETS_THE_KEY
from hangscope.diagnosis.causes.circle_breakers import breaks, few_together, places_at
from hangscope.diagnosis.causes.circles_of_pairs import circle_of_pairs
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.graph.stores import PREFIX
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.majority import may_be_even
from hangscope.diagnosis.pattern.orders import against_order
from hangscope.diagnosis.pattern.stretches import alone_as_ever, out_of_step, strayed
from hangscope.diagnosis.pattern.totals import odd_totals
from hangscope.diagnosis.pattern.yardstick import deviants
from hangscope.diagnosis.processes.host import in_communication
from hangscope.trace.model import NONE


def only_sent(context: Context, ranks: set[int]) -> list[int]:
    """Ranks of a circle that have nothing unfinished but sends, where others really wait.

    A send is fired and forgotten as a rule: such a rank need not be waiting at all.
    """
    waits = context.waits
    weak = [r for r in ranks if all(waits.places[i].weak for i in waits.out(r))]
    if len(weak) == len(ranks):
        return []
    return [r for r in weak if not in_communication(context.hosts[r].stack)]


def circle(context: Context, ranks: set[int], places: set[int]) -> Cause:
    """A circle of waiting: who has to be taken out to break it?"""
    here = places_at(context, places)
    cause = Cause(
        Verdict.DEADLOCK_CYCLE,
        tuple(sorted(ranks)),
        sorted(places),
        began_ns=began(context, sorted(places)),
        sides=_sides(context, ranks, places),
    )
    groups = {place.group for place in here}
    made_up = any(not context.trace.groups[group].ranks for group in groups)
    if untold := ranks & context.without_order:
        who = rank_list(tuple(sorted(untold)))
        cause.accuse_nobody(f"the log does not tell where {who} came first of all it waits in")
    elif any(place.p2p and place.half is None and place.behind for place in here):
        cause.accuse_nobody("the log does not tell for whom the waiting batch is meant")
    elif any(place.phase.startswith(PREFIX) for place in here):
        _through_a_key(context, cause, ranks)
    elif any(map(is_lock, here)):
        _through_a_lock(context, cause, ranks)
    elif context.unlisted or (made_up and context.gaps):
        cause.accuse_nobody(f"members are not listed, and {rank_list(context.gaps)} left no dump")
    elif any(place.p2p for place in here):
        circle_of_pairs(context, cause, ranks, groups - {NONE})
    else:
        _circle_of_collectives(context, cause, ranks, groups - {NONE})
    return cause


def _sides(context: Context, ranks: set[int], places: set[int]) -> list[tuple[int, ...]]:
    """The ranks of a circle by the places that they wait at, the most first."""
    waiting_at: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        waiting_at[tuple(i for i in context.waits.out(rank) if i in places)].append(rank)
    return sorted(map(tuple, waiting_at.values()), key=lambda side: (-len(side), side))


def _through_a_key(context: Context, cause: Cause, ranks: set[int]) -> None:
    """A key that nobody has set: one of the others was to, and has gone on to what comes after."""
    places = context.waits.places
    keys = [i for i in cause.places if places[i].phase.startswith(PREFIX)]
    cause.verdict, cause.confidence = Verdict.COLLECTIVE_MISMATCH, Confidence.LIKELY
    cause.culprits = tuple(r for r in places[keys[0]].targets if r in ranks)
    # Either the key was not set before a half, or the half was left out before the key.
    if any(places[i].p2p for i in cause.places):
        cause.culprits, cause.confidence = tuple(sorted(ranks)), Confidence.AMBIGUOUS
    cause.places = keys + [i for i in cause.places if i not in keys]
    cause.sides = []
    cause.unknowns.append(WHO_SETS_THE_KEY)


def _circle_of_collectives(
    context: Context, cause: Cause, ranks: set[int], groups: set[int]
) -> None:
    """Settle who of a circle without pairs is accused; until then all of them are."""
    here, sides = places_at(context, cause.places), cause.sides
    if any(place.blind for place in here):
        cause.confidence = Confidence.LIKELY
    breakers = [rank for rank in sorted(ranks) if breaks(here, ranks, rank)]
    out_of_order = against_order(context, ranks, here)
    if len(breakers) == 1 and (breakers[0] in out_of_order or not out_of_order):
        cause.culprits = (breakers[0],)
        if alone_as_ever(context, breakers[0], ranks):
            cause.culprits, cause.confidence = tuple(sorted(ranks)), Confidence.AMBIGUOUS
    elif out_of_order:
        cause.culprits, cause.confidence = out_of_order, Confidence.LIKELY
    elif len(sides) == 2 and len(sides[1]) < len(sides[0]):
        lost = {rank for place in here for rank in place.members} - context.on_record
        cause.culprits = sides[1]
        if may_be_even(len(sides[0]), len(sides[1]), len(lost)):
            cause.culprits, cause.confidence = tuple(sorted(ranks)), Confidence.AMBIGUOUS
    else:
        # Who only waits for one of those who could break it has not left the pattern.
        odd = deviants(context, breakers or ranks, groups, pairs=False)
        odd = odd if len(odd) * 2 <= len(ranks) else ()
        odd = odd or strayed(context, ranks) or out_of_step(context, breakers)
        odd = odd or odd_totals(context, breakers or ranks, groups)
        odd = odd or (() if breakers else few_together(here, ranks))
        # Any of the breakers alone explains it all; who only waits for one of them does not.
        cause.culprits = odd or tuple(breakers) or cause.culprits
        cause.confidence = Confidence.LIKELY if odd else Confidence.AMBIGUOUS
    _doubt_the_untold(cause, here)


def _doubt_the_untold(cause: Cause, here: list[Place]) -> None:
    """Of some of the accused it is not on record what they issued there: one of them is enough."""
    untold = {rank for place in here for rank in place.unknown}.intersection(cause.culprits)
    if untold and cause.confidence is Confidence.CERTAIN:
        cause.doubt(f"what {rank_list(tuple(sorted(untold)))} issued there is not on record")
        if len(untold) > 1:
            cause.confidence = Confidence.AMBIGUOUS


def _through_a_lock(context: Context, cause: Cause, ranks: set[int]) -> None:
    """Who holds the lock of a file waits for ranks that cannot come before they have had it."""
    places = places_at(context, cause.places)
    breakers = [r for r in sorted(ranks) if breaks(places, ranks, r)]
    lock = next(p for p in places if is_lock(p))
    holders = tuple(sorted(ranks.intersection(lock.targets)))
    alone = len(breakers) == 1 and holders == tuple(breakers)
    cause.culprits = holders if alone else tuple(sorted(ranks))
    cause.confidence = Confidence.LIKELY if alone else Confidence.AMBIGUOUS
    cause.places.sort(key=lambda i: not is_lock(context.waits.places[i]))
