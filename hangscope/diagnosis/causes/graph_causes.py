"""From the wait-for graph to causes: whom or what each waiting rank ultimately waits for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words, began
from hangscope.diagnosis.causes.cycles import cycle_cause, ranks_with_sends_only
from hangscope.diagnosis.causes.failed_devices import blame_failed_device
from hangscope.diagnosis.causes.left_over_halves import blame_left_over
from hangscope.diagnosis.causes.lost import accuse_unseen, or_lost
from hangscope.diagnosis.causes.sibling_cycles import Cycle, ranks_of_sibling_cycles
from hangscope.diagnosis.causes.sinks import (
    DisjointSets,
    needs_a_cause,
    sink_causes,
    without_own_waiting,
)
from hangscope.diagnosis.causes.unfit import (
    blame_unfit,
    ran_apart,
    wait_for_unlisted,
    waits_for_unlisted,
)
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.differences.world_conflicts import note_loopback, world_conflict
from hangscope.diagnosis.exits.dead_threads import ranks_of_dead_threads
from hangscope.diagnosis.graph.components import components, cycles_without
from hangscope.diagnosis.graph.places import INIT
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.observability import cut_off, cut_short
from hangscope.diagnosis.wording.phrases import label_of, rank_s, title_of
from hangscope.trace.model import Group


def graph_causes(context: Context) -> list[Cause]:
    """One cause for every sink of the graph."""
    waits = context.waits
    waits.cut_off(waits.device)
    on_device = set(waits.device.values())
    waits.cut_off(without_own_waiting(context))
    waits.cut_off(ranks_of_dead_threads(context))
    causes: list[Cause] = []
    roots: list[int] = []
    elsewhere: list[int] = []
    sinks = components(waits)
    idle = {
        r
        for ranks, places in sinks
        if places and ranks
        for r in ranks_with_sends_only(context, ranks)
    }
    if idle:
        waits.cut_off(idle)
        # Without them there may still be a cycle that their sends lead into: it holds them up.
        waits.restore([r for r in idle if _sent_into_a_cycle(context, r)])
        sinks = components(waits)
    for ranks, places in sinks:
        if len(ranks) == 1 and not places:
            root = next(iter(ranks))
            if root not in waits.device:
                roots.append(root)
        elif not ranks:
            stuck = [i for i in places if i not in on_device]
            stuck = [i for i in stuck if needs_a_cause(waits, waits.places[i])]
            here = [i for i in stuck if not waits_for_unlisted(context, waits.places[i])]
            elsewhere += [i for i in stuck if waits_for_unlisted(context, waits.places[i])]
            causes += [_stuck(context, i) for i in here]
    causes += _cycles(context, [sink for sink in sinks if all(sink)])
    if elsewhere:
        causes.append(wait_for_unlisted(context, elsewhere))
    lost = {r for r in roots if context.left_nothing(r)}
    if lost:  # a cycle that stands without them is not their doing
        causes += _cycles(context, cycles_without(waits, lost))
    causes = _with_suspects(context, causes)
    causes += _device(context)
    causes += sink_causes(context, roots)
    return [_with_other_evidence(context, cause) for cause in causes]


def _cycles(context: Context, found: list[Cycle]) -> list[Cause]:
    """One cause for each cycle of waiting."""
    rows = ranks_of_sibling_cycles(context, found)
    return [
        cycle_cause(context, *one, fellow_suspects)
        for one, fellow_suspects in zip(found, rows, strict=True)
    ]


def _with_other_evidence(context: Context, cause: Cause) -> Cause:
    """The cause after checking everything that places do not show, with all its victims."""
    cause = note_loopback(context, accuse_unseen(context, cause))
    reachers = context.waits.reachers(cause.culprits, cause.places)
    cause = replace(cause, victims=cause.victims | (reachers - set(cause.culprits)))
    return blame_failed_device(context, blame_left_over(context, cause) or cause)


def _sent_into_a_cycle(context: Context, rank: int) -> bool:
    """Whether a rank it sent to ultimately waits for itself."""
    waits = context.waits
    partners = {target for place in waits.of(rank) for target in place.targets}
    return any(
        not waits.reachers([partner]).isdisjoint(place.targets)
        for partner in partners
        for place in waits.at(waits.out(partner))
    )


def _device(context: Context) -> list[Cause]:
    """Ranks whose oldest collective has completed elsewhere, combined if they share a group."""
    waits = context.waits
    if not waits.device:
        return []
    waited_for = waits.waited_for()
    sets = DisjointSets(waits.device)
    for place in set(waits.device.values()):
        sets.join([r for r, index in waits.device.items() if index == place])
    for index in {i for rank in waits.device for i in waited_for.get(rank, ())}:
        here = [r for r in waits.places[index].members if r in waits.device]
        sets.join(here)
    causes = []
    for ranks in sets.parts():
        places = tuple(sorted({waits.device[r] for r in ranks}))
        cause = Cause(
            Verdict.STUCK_COLLECTIVE,
            tuple(sorted(ranks)),
            places,
            Confidence.LIKELY,
            began(context, places),
        )
        causes.append(
            ran_apart(context, cause) or or_lost(context, _clear_majority(context, cause))
        )
    return causes


def _clear_majority(context: Context, cause: Cause) -> Cause:
    """If most members cannot finish what a few have finished, do not accuse them.

    The few may have issued something smaller that their record no longer shows, or a network failed
    halfway.
    """
    waits = context.waits
    for index in cause.places:
        place = waits.places[index]
        stuck = [r for r in cause.culprits if waits.device[r] == index]
        few = sorted({r for r in place.members if r in context.trace.ranks} - set(stuck))
        if len(stuck) > len(few) > 0 and len(place.members) > 2:
            few = sorted(set(place.done) - set(stuck)) or few
            words = Words(
                f"Most members of {label_of(context, place.group)} ({rank_s(stuck)}) cannot finish "
                f"{title_of(context, place)}, and {rank_s(few)} could",
                f"the network failed half-way through, or {rank_s(few)} passed something smaller",
                "compare the sizes that all members pass there; if they are equal, check the "
                "network and the devices of the members",
            )
            return replace(cause.accusing((), cause.confidence), words=words).with_first([index])
    return cause


def _stuck(context: Context, index: int) -> Cause:
    """A place that everybody has reached, as far as known, and nobody leaves."""
    place = context.waits.places[index]
    cause = Cause(Verdict.STUCK_COLLECTIVE, (), (index,), began_ns=place.began_ns)
    if place.blind:
        cause = replace(cause, verdict=Verdict.INCONCLUSIVE, confidence=Confidence.LIKELY)
    if place.blind and place.p2p:
        untold = "the records do not say whom the waiting send or recv is meant for"
        cause = cause.with_unknown(untold)
    if place.phase == INIT:
        cause = world_conflict(context, place.members, cause)
    lost = context.overrun.intersection(place.waiters)
    if lost:
        gone = f"the oldest unfinished operations of {len(lost)} ranks have been overwritten"
        cause = cause.with_unknown(gone)
        cause = replace(cause, verdict=Verdict.INCONCLUSIVE, confidence=Confidence.LIKELY)
    if cause.verdict is Verdict.STUCK_COLLECTIVE:
        cause = blame_unfit(context, index, cause)
    members = place.members if place.p2p else ()
    victims = set(place.waiters).difference(cause.culprits).union(members)
    return replace(cause, victims=frozenset(victims))


def _with_suspects(context: Context, causes: list[Cause]) -> list[Cause]:
    """If the members of a waiting group are unknown, suspect ranks that wait for nothing.

    The group waits for a rank whose watchdog reported nothing overdue while all others' did, or
    that left nothing at all. If there are too many such ranks, nothing can be said.
    """
    waits, trace = context.waits, context.trace
    nameless = [
        c
        for c in causes
        if c.verdict in (Verdict.STUCK_COLLECTIVE, Verdict.INCONCLUSIVE)
        and not c.culprits
        and len(c.places) == 1
        and 0 <= waits.places[c.places[0]].group < len(trace.groups)
    ]
    if not nameless:
        return causes
    half = context.partly_recorded | cut_off(trace)
    idle = tuple(
        sorted(
            r
            for r, h in context.processes.items()
            if not waits.places_of.get(r) and not h.ended_by_itself and r not in half
        )
    )
    # If only unfinished entries are listed, a rank without any appears in no group.
    unheard = not context.unfinished_alone.isdisjoint(idle)
    open_ended = [
        c for c in nameless if _is_open(trace.groups[waits.places[c.places[0]].group], unheard)
    ]
    if not open_ended:
        return causes
    unread = context.unreadable
    # A rank that wrote something was alive.
    gone = tuple(r for r in context.gaps if r not in unread)
    # Where other members are heard of only in part, silence is no sign, either.
    heard_too = _half_heard(context, open_ended, half)
    suspects = idle or (() if cut_short(trace) or heard_too else gone)
    chosen = {id(c) for c in open_ended}
    rest = [c for c in causes if id(c) not in chosen]
    places = tuple(sorted(i for c in open_ended for i in c.places))
    total = len(context.known_ranks)
    victims = frozenset(waits.waiters_at(places))
    unlisted = Cause(
        Verdict.INCONCLUSIVE, (), places, Confidence.LIKELY, began(context, places), victims
    ).with_unknown("who belongs to the waiting groups is not listed")
    if suspects and len(suspects) * 2 < total and len(victims) > len(suspects):
        verdict = Verdict.MISSING_RANK if idle else Verdict.RANK_LOST
        confidence = Confidence.LIKELY if len(suspects) == 1 else Confidence.AMBIGUOUS
        accused = replace(unlisted, verdict=verdict, culprits=suspects, confidence=confidence)
        return [*rest, accused]
    if heard_too:
        too = f"{rank_s(heard_too)} belong there as well, and where they wait is not told"
        unlisted = unlisted.with_unknown(too)
        silent = sorted(context.known_ranks - victims - set(heard_too))
        if silent:
            unlisted = unlisted.with_unknown(f"nothing is heard of where {rank_s(silent)} wait")
    return [*rest, unlisted] if len(open_ended) > 1 or heard_too else causes


def _half_heard(context: Context, causes: list[Cause], half: Collection[int]) -> list[int]:
    """Ranks heard of only in part that belong to a waiting group, as their labels show."""
    waiting = {context.waits.places[c.places[0]].group for c in causes}
    return sorted(
        {
            c.reporter
            for c in context.trace.claims
            if c.reporter is not None
            and c.reporter in half
            and c.group in waiting
            and c.details.place is not None
        }
    )


def _is_open(group: Group, unheard: bool) -> bool:
    """Whether a rank may belong to the group without anything showing it."""
    return not group.ranks or (unheard and not group.listed)
