"""Cycles of waiting: whose removal would break them?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words, began
from hangscope.diagnosis.causes.awaited_ranks import UNKNOWN_KEY_SETTER
from hangscope.diagnosis.causes.p2p_cycles import Row, p2p_cycle_cause, weighed
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.cycle_graph import CycleGraph
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.graph.store_places import PREFIX
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.majority import may_be_tie
from hangscope.diagnosis.pattern.unordered_groups import order_is_arbitrary
from hangscope.diagnosis.processes.process_state import in_communication
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.model import NONE

_LOOK_AT_THREADS = (
    "see with py-spy dump which thread of each of these ranks should issue what the others wait "
    "for, and what it does instead: a lock that one thread holds during a collective, say, keeps "
    "the other from its own"
)


def ranks_with_sends_only(context: Context, ranks: set[int]) -> list[int]:
    """Ranks of a cycle with nothing unfinished but sends, while others really wait.

    Sends are usually fire-and-forget: such a rank need not be waiting at all.
    """
    waits = context.waits
    weak = [r for r in ranks if all(place.weak for place in waits.at(waits.out(r)))]
    if len(weak) == len(ranks):
        return []
    return [r for r in weak if not in_communication(context.processes[r].stack)]


def cycle_cause(
    context: Context,
    ranks: set[int],
    places: set[int],
    fellow_suspects: frozenset[int] = frozenset(),
) -> Cause:
    """The cause of a cycle of waiting: whose removal would break it?

    ``fellow_suspects``: the ranks of equally shaped cycles beside it in sibling groups.
    """
    here = context.waits.at(sorted(places))
    cause = Cause(
        Verdict.DEADLOCK_CYCLE,
        tuple(sorted(ranks)),
        tuple(sorted(places)),
        began_ns=began(context, places),
        sides=_sides(context, ranks, places),
    )
    groups = {place.group for place in here}
    made_up = any(not context.trace.groups[group].ranks for group in groups)
    if untold := ranks & context.without_order:
        who = rank_s(untold)
        return cause.naming_nobody(f"the log does not say which of its waits {who} reached first")
    if any(place.p2p and place.half is None and place.behind for place in here):
        return cause.naming_nobody("the log does not say for whom the waiting batch is meant")
    if any(place.phase.startswith(PREFIX) for place in here):
        return _through_a_key(context, cause, ranks)
    if any(map(is_lock, here)):
        return _through_a_lock(context, cause, ranks)
    if context.unlisted or (made_up and context.gaps):
        return cause.naming_nobody(
            f"members are not listed, and {rank_s(context.gaps)} left no record"
        )
    fellows = Row(frozenset(ranks), fellow_suspects)
    if any(place.p2p for place in here):
        return _doubt_unfinished(p2p_cycle_cause(context, cause, fellows), here)
    return _collective_cycle(context, cause, fellows)


def _sides(context: Context, ranks: set[int], places: set[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks of a cycle by the places where they wait, largest side first."""
    waiting_at: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        waiting_at[tuple(i for i in context.waits.out(rank) if i in places)].append(rank)
    return tuple(sorted(map(tuple, waiting_at.values()), key=lambda side: (-len(side), side)))


def _through_a_key(context: Context, cause: Cause, ranks: set[int]) -> Cause:
    """A key that nobody has set: one of the other ranks should have, and has gone on."""
    places = context.waits.places
    keys = [i for i in cause.places if places[i].phase.startswith(PREFIX)]
    # Either the key was not set before a half, or the half was left out before the key.
    either = any(places[i].p2p for i in cause.places)
    setters = tuple(r for r in places[keys[0]].targets if r in ranks)
    found = replace(
        cause,
        verdict=Verdict.COLLECTIVE_MISMATCH,
        culprits=tuple(sorted(ranks)) if either else setters,
        confidence=Confidence.AMBIGUOUS if either else Confidence.LIKELY,
        sides=(),
    )
    return found.with_first(keys).with_unknown(UNKNOWN_KEY_SETTER)


def _collective_cycle(context: Context, cause: Cause, row: Row) -> Cause:
    """Decide who is to blame for a cycle of collectives only; if undecided, all its ranks are
    accused."""
    here = context.waits.at(sorted(cause.places))
    if order_is_arbitrary(context, row.ranks, here):
        nobody = cause.naming_nobody(
            "what holds these ranks up: they have come to these groups in different orders before, "
            "as threads do, and went on"
        )
        return replace(nobody, words=Words(fix=_LOOK_AT_THREADS))
    if any(_waits_beside_what_is_due(context, rank, here) for rank in row.ranks):
        return replace(_smaller_side(context, cause, here), words=Words(fix=_LOOK_AT_THREADS))
    if any(place.blind for place in here):
        cause = replace(cause, confidence=Confidence.LIKELY)
    return _doubt_unfinished(_blame(context, cause, row), here)


def _waits_beside_what_is_due(context: Context, rank: int, here: list[Place]) -> bool:
    """Whether a rank waits in another thread than the one that has issued what others wait for so
    far: the order of the two is nobody's mistake, and something else holds that thread up."""
    records = context.trace.records
    rows = [context.row_of(p.group, rank, p.seq) for p in here if rank in p.waiters]
    before = [context.row_of(p.group, rank, p.seq - 1) for p in here if rank in p.absent]
    waiting = {int(records["thread"][row]) for row in rows if row != NONE}
    due = {int(records["thread"][row]) for row in before if row != NONE}
    return bool(waiting and due) and waiting.isdisjoint(due) and NONE not in waiting | due


def _smaller_side(context: Context, cause: Cause, here: list[Place]) -> Cause:
    """Where the order of the groups says nothing, only numbers decide."""
    if len(cause.sides) == 2 and not _is_even(context, cause.sides, here):
        return replace(cause, culprits=cause.sides[1], confidence=Confidence.LIKELY)
    return replace(cause, confidence=Confidence.AMBIGUOUS)


def _is_even(context: Context, sides: tuple[tuple[int, ...], ...], here: list[Place]) -> bool:
    """Whether members that left nothing could make both sides of a cycle equal."""
    lost = {rank for place in here for rank in place.members} - context.on_record
    return may_be_tie(len(sides[0]), len(sides[1]), len(lost))


def _blame(context: Context, cause: Cause, row: Row) -> Cause:
    """The cycle with the ranks that explain it as culprits; all of them if nothing decides."""
    ranks, sides, here = set(row.ranks), cause.sides, context.waits.at(sorted(cause.places))
    graph = CycleGraph(here, ranks)
    breakers = sorted(graph.breakers)
    even = len(sides) == 2 and _is_even(context, sides, here)
    shown: tuple[int, ...] = ()
    if len(breakers) == 1:
        shown = (breakers[0],)
    elif len(sides) == 2 and not even:
        shown = sides[1]
    settled = weighed(context, cause, row, shown)
    if settled is not None:
        return settled
    few = () if shown or breakers or even else graph.smallest_side
    # Any breaker alone explains the cycle; a rank that only waits for one of them does not.
    culprits = few or (() if shown else tuple(breakers)) or tuple(sorted(ranks))
    sure = Confidence.LIKELY if few else Confidence.AMBIGUOUS
    return replace(cause, culprits=culprits, confidence=sure)


def _doubt_unfinished(cause: Cause, here: list[Place]) -> Cause:
    """Doubt culprits if it is not recorded whether anybody they wait for has finished that: then
    their devices are stuck in it."""
    own = [p for p in here if not p.p2p and not set(p.waiters).isdisjoint(cause.culprits)]
    if not own or any(place.absent or place.behind for place in own):
        return cause
    return cause.doubted("whether others have finished what the accused wait in is not on record")


def _through_a_lock(context: Context, cause: Cause, ranks: set[int]) -> Cause:
    """The holder of a file lock waits for ranks that cannot arrive before they get the lock."""
    places = context.waits.at(sorted(cause.places))
    lock = next(p for p in places if is_lock(p))
    holders = tuple(sorted(ranks.intersection(lock.targets)))
    alone = len(holders) == 1 and CycleGraph(places, ranks).breakers == {*holders}
    return replace(
        cause,
        culprits=holders if alone else tuple(sorted(ranks)),
        confidence=Confidence.LIKELY if alone else Confidence.AMBIGUOUS,
        places=tuple(sorted(cause.places, key=lambda i: not is_lock(context.waits.places[i]))),
    )
