"""Circles of waiting: who has to be taken out to break them?"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from hangscope.diagnosis.cause import Cause, began, rank_list
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.graph.stores import PREFIX
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.majority import may_be_even
from hangscope.diagnosis.pattern.orders import against_order
from hangscope.diagnosis.pattern.stages import odd_stage
from hangscope.diagnosis.pattern.stretches import alone_as_ever, out_of_step, strayed
from hangscope.diagnosis.pattern.yardstick import deviants, ran_ahead
from hangscope.diagnosis.processes.host import in_communication
from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.diagnosis.records.evidence import hidden_ranks
from hangscope.trace.model import NONE

_COMPANY = 2
"""So many who meet, and so many halves that nobody met, make the one who is elsewhere wrong."""


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
    waits = context.waits
    chosen = sorted(places)
    first_ns = began(context, chosen)
    sides_of: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        sides_of[tuple(i for i in waits.out(rank) if i in places)].append(rank)
    sides = sorted((tuple(r) for r in sides_of.values()), key=lambda s: (-len(s), s))
    cause = Cause(
        Verdict.DEADLOCK_CYCLE, tuple(sorted(ranks)), chosen, began_ns=first_ns, sides=sides
    )
    lonely = [i for i in chosen if waits.places[i].p2p]
    made_up = any(
        not context.trace.groups[g].ranks for g in (waits.places[i].group for i in chosen)
    )
    keys = [i for i in chosen if waits.places[i].phase.startswith(PREFIX)]
    if keys:  # of the others one was to set it, and has gone on to what comes after
        cause.verdict, cause.confidence = Verdict.COLLECTIVE_MISMATCH, Confidence.LIKELY
        cause.culprits = tuple(r for r in waits.places[keys[0]].targets if r in ranks)
        cause.places = keys + [i for i in chosen if i not in keys]
        cause.sides = []
        cause.unknowns.append("who is to set the key that is waited for in the store")
        if (
            lonely
        ):  # either the key was not set before the half, or the half left out before the key
            cause.culprits, cause.confidence = tuple(sorted(ranks)), Confidence.AMBIGUOUS
        return cause
    if any(is_lock(waits.places[i]) for i in chosen):
        _through_a_lock(context, cause, ranks)
        return cause
    if context.unlisted or (made_up and context.gaps):
        cause.verdict, cause.culprits = Verdict.INCONCLUSIVE, ()
        cause.confidence, cause.victims = Confidence.LIKELY, set(ranks)
        cause.unknowns.append(f"members are not listed, and {rank_list(context.gaps)} left no dump")
        return cause
    groups = {waits.places[i].group for i in chosen} - {NONE}
    if lonely:
        _circle_of_pairs(context, cause, ranks, groups, lonely)
        return cause
    if any(waits.places[i].blind for i in chosen):
        cause.confidence = Confidence.LIKELY
    breakers = [r for r in sorted(ranks) if _breaks(waits_places(context, places), ranks, r)]
    out_of_order = against_order(context, ranks, waits_places(context, places))
    if len(breakers) == 1 and (breakers[0] in out_of_order or not out_of_order):
        cause.culprits = (breakers[0],)
        if alone_as_ever(context, breakers[0], ranks):
            cause.culprits, cause.confidence = tuple(sorted(ranks)), Confidence.AMBIGUOUS
    elif out_of_order:
        cause.culprits, cause.confidence = out_of_order, Confidence.LIKELY
    elif len(sides) == 2 and len(sides[1]) < len(sides[0]):
        lost = {r for i in chosen for r in waits.places[i].members} - context.on_record
        cause.culprits = sides[1]
        if may_be_even(len(sides[0]), len(sides[1]), len(lost)):
            cause.culprits, cause.confidence = tuple(sorted(ranks)), Confidence.AMBIGUOUS
    else:
        # Who only waits for one of those who could break it has not left the pattern.
        odd = deviants(context, breakers or ranks, groups, pairs=False)
        odd = odd if len(odd) * 2 <= len(ranks) else ()
        odd = odd or strayed(context, ranks) or out_of_step(context, breakers)
        odd = odd or (() if breakers else _together(waits_places(context, places), ranks))
        # Any of the breakers alone explains it all; who only waits for one of them does not.
        cause.culprits = odd or tuple(breakers) or cause.culprits
        cause.confidence = Confidence.LIKELY if odd else Confidence.AMBIGUOUS
    untold = {r for i in chosen for r in waits.places[i].unknown} & set(cause.culprits)
    if untold and cause.confidence is Confidence.CERTAIN:
        cause.doubt(f"what {rank_list(tuple(sorted(untold)))} issued there is not on record")
        if len(untold) > 1:
            cause.confidence = Confidence.AMBIGUOUS  # one of them is enough
    return cause


def _through_a_lock(context: Context, cause: Cause, ranks: set[int]) -> None:
    """Who holds the lock of a file waits for ranks that cannot come before they have had it."""
    places = waits_places(context, set(cause.places))
    breakers = [r for r in sorted(ranks) if _breaks(places, ranks, r)]
    lock = next(p for p in places if is_lock(p))
    holders = tuple(sorted(ranks.intersection(lock.targets)))
    alone = len(breakers) == 1 and holders == tuple(breakers)
    cause.culprits = holders if alone else tuple(sorted(ranks))
    cause.confidence = Confidence.LIKELY if alone else Confidence.AMBIGUOUS
    cause.places.sort(key=lambda i: not is_lock(context.waits.places[i]))


def _circle_of_pairs(
    context: Context, cause: Cause, ranks: set[int], groups: set[int], lonely: list[int]
) -> None:
    """A circle with sends or receives in it: did one rank leave its half out?"""
    waits = context.waits
    # What a host has issued behind its first half is not due yet: nobody has left it out.
    first = _first_halves(context, ranks)
    lonely = [i for i in lonely if _stands_at(context, waits.places[i], first)] or lonely
    ahead = _left_early(context, cause, lonely) or _a_round_more(
        context, ranks, waits_places(context, set(cause.places))
    )
    if len(ahead) == 1:
        cause.culprits, cause.confidence = ahead, Confidence.LIKELY
        return
    places = waits_places(context, set(cause.places))
    breakers = [r for r in sorted(ranks) if _breaks(places, ranks, r)]
    one = set(breakers) if len(breakers) == 1 < len(ranks) - 1 else set()
    if one and _in_collectives(places, ranks, one) and len(_who_wait_with(places, one)) == 1:
        cause.culprits = tuple(one)
        return
    few = set(_together(places, ranks))
    if len(few) > 1 and _in_collectives(places, ranks, few):
        # Others who have come to the same without holding anybody up may be right to be there.
        cause.culprits = _who_wait_with(places, few)
        alone = len(cause.culprits) == len(few)
        cause.confidence = Confidence.LIKELY if alone else Confidence.AMBIGUOUS
        return
    stage = odd_stage(context, ranks, groups)
    if stage is not None:
        others = f"{rank_list(stage.others)} {stage.usual} times"
        cause.evidence.append(
            f"rank {stage.rank} came to {stage.line} {stage.times} times, {others} each"
        )
    blank = {r for r in ranks if r in context.trace.ranks and context.trace.ranks[r].only_active}
    odd = () if blank else deviants(context, ranks, groups)
    odd = (stage.rank,) if stage is not None else odd
    closed = _among_themselves(context, set(odd)) if len(odd) > 1 else set()
    if closed:
        # They wait for one another; who also receives there may only wait for who left the pattern.
        cause.culprits = tuple(sorted(closed))
        widened = len(closed) > len(odd)
        cause.confidence = Confidence.AMBIGUOUS if widened else Confidence.LIKELY
        return
    if len(odd) * 2 > len(ranks):
        odd = ()  # where most of them left the pattern, it is the code of all
    if odd:
        # One that left the pattern keeps those who share a group with it from theirs.
        cause.confidence = Confidence.AMBIGUOUS if len(odd) > 1 else Confidence.LIKELY
    elif len(lonely) < len(cause.places):
        odd = _who_went_on(context, ranks, lonely)
        if odd and len(ranks) == 2 and len({waits.places[i].seq for i in lonely}) > 1:
            # Not one half is missing but a whole row of them: either did more or less before.
            cause.confidence = Confidence.AMBIGUOUS
            return
        if odd and len(ranks) > 2 and ranks & hidden_ranks(context.trace):
            cause.confidence = Confidence.LIKELY
        if not odd and len(breakers) == 1:
            cause.culprits = (breakers[0],)
            return
    if not odd and not blank:
        odd = strayed(context, ranks) or out_of_step(context, ranks)
        cause.confidence = Confidence.LIKELY if odd else cause.confidence
    if not odd:
        # Where some have issued all that the others need, one mistake may be behind it all.
        lacking = {r for p in places for r in p.absent}
        # So it may where they stand at different lines: then it is no loop that is wrong for all.
        stacks = {user_frames(context.stack(p.row)) for p in places}
        one_kind = len(lonely) == len(cause.places) and len(stacks) == 1
        if not one_kind or ranks - lacking or ranks & hidden_ranks(context.trace):
            cause.confidence = Confidence.AMBIGUOUS
            cause.culprits = _ends_of_what_is_missing(places, ranks) or cause.culprits
        return
    cause.culprits = odd
    due = [i for i, p in enumerate(waits.places) if p.p2p and set(p.targets) & set(odd)]
    if due:
        cause.verdict = Verdict.P2P_UNMATCHED
        cause.places = due + [i for i in cause.places if i not in due]


def _first_halves(context: Context, ranks: set[int]) -> dict[int, int]:
    """Per rank the record of the first half that it waits at."""
    found = {}
    for rank in ranks:
        places = [context.waits.places[i] for i in context.waits.out(rank)]
        found[rank] = min((p.row for p in places if p.p2p and not p.weak), default=NONE)
    return found


def _stands_at(context: Context, place: Place, first: dict[int, int]) -> bool:
    """Whether a rank that waits at this half waits for none of an earlier batch or call."""
    batch = context.front.batch_row
    return any(
        first.get(rank, NONE) in (NONE, place.row) or NONE != batch[first[rank]] == batch[place.row]
        for rank in place.waiters
    )


def _ends_of_what_is_missing(places: list[Place], ranks: set[int]) -> tuple[int, ...]:
    """The ranks between which something was never issued, where all else on a circle has been.

    The others only stand in line: they have issued what their partners have issued.
    """
    missing = [p for p in places if p.absent or not p.behind]
    ends = {r for p in missing for r in (*p.waiters, *p.targets)} & ranks
    between = {frozenset((frozenset(p.waiters), frozenset(p.targets))) for p in missing}
    return tuple(sorted(ends)) if len(between) == 1 and 1 < len(ends) < len(ranks) else ()


def _in_collectives(places: list[Place], ranks: set[int], few: set[int]) -> bool:
    """Whether these of a circle wait in collectives only, for all who wait for them elsewhere.

    They have gone on to what comes later, and nobody has followed.
    """
    own = [p for p in places if not few.isdisjoint(p.waiters)]
    return bool(own) and all(not p.p2p and ranks.intersection(p.waiters) == few for p in own)


def _who_wait_with(places: list[Place], few: set[int]) -> tuple[int, ...]:
    """These and all others who have come to the same places."""
    return tuple(sorted(few.union(*(p.waiters for p in places if not few.isdisjoint(p.waiters)))))


def _left_early(context: Context, cause: Cause, lonely: list[int]) -> tuple[int, ...]:
    """Ranks at a pair that no counterpart has come to, absent where most others of them wait.

    They left a collective out and went on.
    """
    waits = context.waits
    due = [waits.places[i] for i in cause.places if not waits.places[i].p2p]
    found = set()
    for place in (waits.places[i] for i in lonely):
        for rank in place.waiters:
            missed = any(rank in p.absent and len(p.waiters) > len(p.absent) for p in due)
            if missed and ran_ahead(context, rank, place.group, place.seq):
                found.add(rank)
    return tuple(sorted(found))


def _a_round_more(context: Context, ranks: set[int], places: list[Place]) -> tuple[int, ...]:
    """The one rank of which a whole row of halves was never met, while all others meet elsewhere.

    They wait for it in a collective. Had one of them left out so much, not this rank alone would
    still wait for it.
    """
    waiting = {r for p in places if p.p2p for r in p.waiters} & ranks
    met = [p for p in places if not p.p2p and not waiting.intersection(p.waiters)]
    others = {r for p in met for r in p.waiters}
    if (
        len(waiting) != 1
        or len(met) != 1
        or len(others) < _COMPANY
        or not ranks - waiting <= others
    ):
        return ()
    (rank,) = waiting
    more = max(_exchanged(context, rank, r) - _exchanged(context, r, rank) for r in others)
    return (rank,) if waiting == set(met[0].targets) and more >= _COMPANY else ()


def _exchanged(context: Context, rank: int, peer: int) -> int:
    """How many halves a rank has issued towards another, as far as its records go back."""
    low, high = context.bounds.get(rank, (0, 0))
    part = context.trace.records[low:high]
    halves = context.front.p2p[low:high] & (part["peer"] == peer)
    return int(np.count_nonzero(halves))


def _who_went_on(context: Context, ranks: set[int], lonely: list[int]) -> tuple[int, ...]:
    """The one rank that left its half out and went on to something that needs the waiting side."""
    waits = context.waits
    waiting = {r for i in lonely for r in waits.places[i].waiters}
    wanted = {r for i in lonely for r in waits.places[i].absent} & ranks
    ends = wanted - waiting
    if len(ends) != 1:
        return ()
    (end,) = ends
    needs = {t for i in waits.out(end) for t in waits.places[i].targets}
    return (end,) if needs & waiting else ()


def _among_themselves(context: Context, ranks: set[int]) -> set[int]:
    """The circle of receives that ``ranks`` are part of, if each waits for one who never sent."""
    waits = context.waits
    closed, queue = set(ranks), list(ranks)
    while queue:
        rank = queue.pop()
        wanted = {
            t for i in waits.out(rank) if waits.places[i].p2p for t in waits.places[i].targets
        }
        if not wanted:
            return set()
        queue += wanted - closed
        closed |= wanted
    return closed


def _together(places: list[Place], ranks: set[int]) -> tuple[int, ...]:
    """The fewest who wait at one place and without whom, taken together, the circle falls apart.

    They have all done the same that nobody else did. Nobody, where two places are equally few.
    """
    waiting = {tuple(r for r in p.waiters if r in ranks) for p in places}
    few = sorted((w for w in waiting if 1 < len(w) * 2 < len(ranks)), key=len)
    found = [w for w in few if _breaks(places, ranks, *w)]
    alone = len(found) == 1 or (len(found) > 1 and len(found[0]) < len(found[1]))
    return tuple(sorted(found[0])) if alone else ()


def waits_places(context: Context, places: set[int]) -> list[Place]:
    """The places of a component."""
    return [context.waits.places[i] for i in sorted(places)]


def _breaks(places: list[Place], ranks: set[int], *without: int) -> bool:
    """Whether the circle falls apart once those ``without`` whom it is looked at are taken out."""
    rest = ranks.difference(without)
    remaining = [
        (
            [r for r in p.waiters if r in rest],
            [r for r in p.targets if r in rest],
        )
        for p in places
    ]
    waiting: dict[int, list[int]] = defaultdict(list)
    for index, (waiters, _) in enumerate(remaining):
        for rank in waiters:
            waiting[rank].append(index)
    # Peel off everything that waits for nobody; what is left is a circle.
    open_targets = [len(set(targets)) for _, targets in remaining]
    into: dict[int, list[int]] = defaultdict(list)
    for index, (_, targets) in enumerate(remaining):
        for rank in set(targets):
            into[rank].append(index)
    left = {r: len(waiting.get(r, ())) for r in rest}
    queue = [r for r, n in left.items() if n == 0]
    free_places = [i for i, n in enumerate(open_targets) if n == 0]
    removed = 0
    while queue or free_places:
        while free_places:
            for rank in remaining[free_places.pop()][0]:
                left[rank] -= 1
                if left[rank] == 0:
                    queue.append(rank)
        if queue:
            rank = queue.pop()
            removed += 1
            for index in into.get(rank, ()):
                open_targets[index] -= 1
                if open_targets[index] == 0:
                    free_places.append(index)
    return removed == len(left)
