"""Ranks that are waited for and wait for nobody."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hangscope.diagnosis.cause import Cause, Words, began
from hangscope.diagnosis.causes.lost import lost_ranks
from hangscope.diagnosis.causes.odd_ones import both_sides, odd_ones, waiting_alone
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.ends.latecomers import came_too_late
from hangscope.diagnosis.ends.own_doing import alike, first_to_fail, own_errors
from hangscope.diagnosis.graph.places import INIT, NEW_GROUP
from hangscope.diagnosis.graph.stores import (
    PREFIX,
    key_given_up,
    waits_in_store,
    without_store_waits,
)
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.pattern.habits import sent_otherwise
from hangscope.diagnosis.processes.host import End, in_communication, is_unseen
from hangscope.diagnosis.records.evidence import half_told
from hangscope.diagnosis.words.phrases import rank_s
from hangscope.trace.model import NONE, State

_MOST_UNKNOWN = 2
"""Ranks of which nothing is on record that are still accused though fewer wait for them."""


class Union:
    """Which ranks belong together."""

    def __init__(self, ranks: object) -> None:
        self.parent = {r: r for r in ranks}  # type: ignore[attr-defined]

    def find(self, rank: int) -> int:
        while self.parent[rank] != rank:
            self.parent[rank] = self.parent[self.parent[rank]]
            rank = self.parent[rank]
        return rank

    def join(self, ranks: list[int]) -> None:
        for a, b in pairwise(ranks):
            self.parent[self.find(a)] = self.find(b)

    def parts(self) -> list[list[int]]:
        result: dict[int, list[int]] = defaultdict(list)
        for rank in self.parent:
            result[self.find(rank)].append(rank)
        return sorted(result.values())


def from_roots(context: Context, roots: list[int]) -> list[Cause]:
    """Ranks that are waited for and wait for nobody."""
    waits = context.waits
    waited_for = waits.waited_for()
    roots = [r for r in roots if waited_for.get(r)]
    gone = {r for r in context.unrecorded if context.hosts[r].end is End.TORN_DOWN}
    lost = [r for r in roots if r not in context.trace.ranks or r in gone]
    known = [r for r in roots if r not in lost]
    waited = [r for r in known if _waited_itself(context, r)] if lost or context.bounds else []
    known = [r for r in known if r not in waited]
    held = set(known)
    known = without_store_waits(known, context.hosts)
    held -= set(known)
    causes: list[Cause] = []
    if waited and not (lost or known or held):
        causes.append(_unknown_wait(context, waited, waited_for))
    by_kind: dict[Verdict, list[int]] = defaultdict(list)
    for rank in known:
        by_kind[_verdict_of_root(context, rank, waited_for[rank])].append(rank)
    for verdict, ranks in by_kind.items():
        sets = Union(ranks)
        member = set(ranks)
        for index in {i for r in ranks for i in waited_for[r]}:
            sets.join([r for r in waits.places[index].targets if r in member])
        for part in sets.parts():
            first = _first_to_fail(context, verdict, part)
            places = sorted({i for r in first for i in waited_for[r]})
            made = _root_cause(context, verdict, tuple(sorted(first)), places)
            for cause in made:
                cause.victims |= set(part) - set(first)
            causes += made
    if held:
        _hold_up(context, causes, held)
    explained: set[int] = set()
    for cause in causes:
        explained |= waits.reachers(cause.culprits, cause.places)
    causes += lost_ranks(context, lost, waited_for, explained)
    return causes


def _waited_itself(context: Context, rank: int) -> bool:
    """Whether all that is left of a rank are the words with which it gave up waiting for others.

    What it waited in is not on record: it explains nothing where somebody else may.
    """
    return rank not in context.bounds and _gave_up(context, rank)


def _gave_up(context: Context, rank: int) -> bool:
    """Whether a rank ended because others did not come.

    Where it ended without a word and had finished the last that it issued, its stack is only that
    of its newest call.
    """
    host = context.hosts[rank]
    _, high = context.bounds.get(rank, (0, 0))
    silent = context.trace.ranks[rank].exception is None
    if silent and high and context.trace.records["state"][high - 1] == int(State.COMPLETED):
        return False
    ended = host.end is End.CRASHED and host.secondary and bool(host.stack)
    return ended and in_communication(host.stack)


def _unknown_wait(context: Context, ranks: list[int], waited_for: dict[int, list[int]]) -> Cause:
    """Others wait for ranks of which only a last word is left, and that waited themselves."""
    places = sorted({i for r in ranks for i in waited_for[r]})
    cause = Cause(Verdict.INCONCLUSIVE, (), places, Confidence.LIKELY, began(context, places))
    cause.victims = {*ranks, *(w for i in places for w in context.waits.places[i].waiters)}
    cause.unknowns.append(f"what {rank_s(ranks)} gave up waiting in: it is not on record")
    return cause


def _hold_up(context: Context, causes: list[Cause], held: set[int]) -> None:
    """Ranks that did not come because they wait for a key are victims of those who did not either.

    Who sets a key is not recorded, so nothing of the kind is certain.
    """
    behind = held | context.waits.reachers(held)
    for cause in causes:
        cause.victims |= behind - set(cause.culprits)
        if cause.verdict is not Verdict.RANK_CRASHED and cause.confidence is Confidence.CERTAIN:
            cause.confidence = Confidence.LIKELY
        cause.evidence += _keys_waited_for(context, sorted(held))
        cause.unknowns.append("who is to set the key that is waited for in the store")


def _exchanging_alone_with(context: Context, ranks: tuple[int, ...], places: list[int]) -> set[int]:
    """Who waits for ranks that aborted unrecorded in a collective of two: either may be wrong.

    So may the one rank that sent them something else than ever before. Of more members those that
    agree with each other are right.
    """
    aborted = [context.hosts[r].end_text == "killed by SIGABRT" for r in ranks]
    if not all(aborted) or not context.unrecorded.issuperset(ranks):
        return set()
    here = [context.waits.places[i] for i in places]
    two = {w for p in here if not p.phase and not p.p2p and len(p.members) == 2 for w in p.waiters}
    senders = {r for r in context.bounds if any(sent_otherwise(context, r, to) for to in ranks)}
    return two or (senders if len(senders) == 1 else set())


def _could_not_connect(context: Context, cause: Cause) -> Cause:
    """Who cannot reach the others while they get to know each other does not tell who is wrong."""
    ranks = cause.culprits
    cause.verdict, cause.culprits = Verdict.INCONCLUSIVE, ()
    cause.victims = {*ranks, *(w for i in cause.places for w in context.waits.places[i].waiters)}
    phase = context.waits.places[cause.places[0]].phase
    cause.words = Words(
        f"{rank_s(ranks).capitalize()} could not connect to the other ranks in {phase}: "
        f"{context.hosts[ranks[0]].end_text}",
        "the address that it names is one that nobody listens at, or that cannot be reached from "
        "there; whose it is is not told",
        "look whether it is of a process that is gone (groups made anew find the addresses of the "
        "last ones in a store that outlived them) or of the wrong interface "
        "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)",
    )
    return cause


def _keys_waited_for(context: Context, ranks: list[int]) -> list[str]:
    """What some of these ranks wait for in the store, in words."""
    said = []
    for rank in ranks[:4]:
        if given_up := key_given_up(context.hosts.get(rank)):
            said.append(f"rank {rank} waited in vain for {given_up!r} in the store")
            continue
        phase = context.trace.ranks[rank].phases[-1]
        key = f" {phase.detail!r}" if phase.detail else ""
        said.append(f"rank {rank} waits in {phase.name}{key} for another rank")
    return said


def _first_to_fail(context: Context, verdict: Verdict, ranks: list[int]) -> list[int]:
    """Of ranks that crashed, the first of those whose failure speaks of nobody else's."""
    if verdict is not Verdict.RANK_CRASHED:
        return ranks
    own = [r for r in ranks if not context.hosts[r].secondary] or ranks
    return [host.rank for host in first_to_fail([context.hosts[r] for r in own])]


def _root_cause(
    context: Context, verdict: Verdict, ranks: tuple[int, ...], places: list[int]
) -> list[Cause]:
    waits = context.waits
    cause = Cause(verdict, ranks, places, began_ns=began(context, places))
    if half_told(context.trace).issuperset(ranks):
        cause.verdict, cause.culprits, cause.victims = Verdict.INCONCLUSIVE, (), set(ranks)
        cause.confidence = Confidence.LIKELY
        cause.unknowns.append(f"what {rank_s(ranks)} waits in: the excerpt does not hold it")
        return [cause]
    if not any(set(ranks) & set(p.absent + p.behind) for p in (waits.places[i] for i in places)):
        waiters = {r for i in places for r in waits.places[i].waiters}
        if verdict is Verdict.MISSING_RANK and len(ranks) > max(len(waiters), _MOST_UNKNOWN):
            cause.verdict, cause.culprits, cause.victims = Verdict.INCONCLUSIVE, (), set(ranks)
            cause.confidence = Confidence.LIKELY
            cause.unknowns.append(f"what {rank_s(ranks)} issued, which is not on record")
            return [cause]
        cause.confidence = Confidence.LIKELY if len(ranks) == 1 else Confidence.AMBIGUOUS
        cause.unknowns.append("what the accused issued is not on record; nobody else is left")
    if all(waits.places[i].phase.startswith(PREFIX) for i in places):
        cause.confidence = Confidence.LIKELY if len(ranks) == 1 else Confidence.AMBIGUOUS
        cause.unknowns.append("who is to set the key that is waited for in the store")
    own = {r: context.hosts.get(r) for r in ranks}
    stored = [r for r, host in own.items() if waits_in_store(host) or key_given_up(host)]
    if verdict is Verdict.MISSING_RANK and len(stored) == len(ranks):
        # Somebody else may have forgotten to set it, one of those who wait here perhaps.
        cause.evidence += _keys_waited_for(context, stored)
        cause.doubt("who is to set the key that is waited for in the store")
    if verdict is Verdict.RANK_CRASHED and all(is_unseen(context.trace.ranks[r]) for r in ranks):
        cause.doubt(
            "nobody saw how the accused ended: one that was stopped, or in which C code holds the "
            "GIL, falls silent as well"
        )
    if verdict is Verdict.RANK_CRASHED and all(context.hosts[r].secondary for r in ranks):
        cause.doubt("what they failed of speaks of somebody else's failure")
        if context.gaps and all(_gave_up(context, r) for r in ranks):
            cause.verdict, cause.culprits, cause.victims = Verdict.INCONCLUSIVE, (), set(ranks)
            cause.unknowns.append(f"what {rank_s(context.gaps)} did, of which nothing is left")
            return [cause]
        if all(waits.places[i].phase in (INIT, NEW_GROUP) for i in places):
            return [_could_not_connect(context, cause)]
    beside = _exchanging_alone_with(context, ranks, places) - set(ranks)
    if verdict is Verdict.RANK_CRASHED and beside:
        cause.culprits, cause.confidence = tuple(sorted({*ranks, *beside})), Confidence.AMBIGUOUS
        cause.words = Words(
            f"{rank_s(ranks).capitalize()} aborted in an exchange with {rank_s(beside)} alone and "
            "left no record",
            "Gloo aborts who gets more than it asked for, whichever of the two is wrong",
            "compare the sizes that both sides come to in that group",
        )
        return [cause]
    if verdict is Verdict.RANK_CRASHED and not alike([context.hosts[r] for r in ranks]):
        cause.confidence = Confidence.AMBIGUOUS
        cause.unknowns.append("which of the accused failed first")
    halves = [waits.places[i].half for i in places]
    if all(half is not None and half.peer == NONE for half in halves):
        cause.confidence = Confidence.LIKELY
        cause.unknowns.append(
            "a receive from any source does not say whom it waits for; the accused sent less often"
        )
    if (
        verdict is Verdict.RANK_CRASHED
        and context.trace.only_logs
        and _only_aborted(context, ranks)
    ):
        cause.verdict, cause.culprits = Verdict.INCONCLUSIVE, ()
        cause.victims = set(ranks)
        cause.unknowns.append(
            f"{rank_s(ranks)} aborted, as a watchdog does after a timeout; for whom it "
            "waited is not told"
        )
        return [cause]
    if verdict in (Verdict.MISSING_RANK, Verdict.RANK_EXITED):
        odd = odd_ones(context, ranks, places)
        if odd:
            cause.verdict = Verdict.COLLECTIVE_MISMATCH
            cause.culprits = odd
            cause.odd_one = True
            cause.confidence = Confidence.LIKELY
            cause.victims = set(ranks)
            cause.sides = [ranks, odd]
            cause.places = [i for i in places if set(waits.places[i].waiters) & set(odd)]
            unknown = {r for i in cause.places for r in waits.places[i].unknown}
            if len(odd) + len(unknown) >= len(ranks):
                both_sides(context, cause, tuple(sorted(unknown)))
    if verdict in (Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED) and cause.culprits == ranks:
        alone = waiting_alone(context, ranks, places)
        if alone:
            cause.sides = [ranks, alone]
            both_sides(context, cause, ())
    return [cause]


def _only_aborted(context: Context, ranks: tuple[int, ...]) -> bool:
    """Whether nothing is known of these ends but that the processes aborted themselves."""
    hosts = [context.hosts[rank] for rank in ranks]
    own = own_errors(context.trace.claims)
    return all(
        h.secondary and h.end_text == "killed by SIGABRT" for h in hosts
    ) and not own.keys() & {*ranks}


def _verdict_of_root(context: Context, rank: int, places: list[int]) -> Verdict:
    waits = context.waits.places
    host = context.hosts[rank]
    waiting = [context.hosts.get(w) for i in places for w in waits[i].waiters]
    if came_too_late(host, waiting, context.trace.ranks):
        return Verdict.MISSING_RANK
    if host.end is End.CRASHED or rank in own_errors(context.trace.claims):
        return Verdict.RANK_CRASHED
    if host.end is End.CLEAN:
        return Verdict.RANK_EXITED
    inside = any(rank in context.waits.places[i].behind for i in places)
    if host.state == "stopped" and inside:
        return Verdict.STUCK_COLLECTIVE  # it has issued its part and cannot carry it out
    only_p2p = all(context.waits.places[i].p2p for i in places)
    seen_elsewhere = bool(host.stack) or host.phase is not None or host.frozen
    if only_p2p and not seen_elsewhere:
        return Verdict.P2P_UNMATCHED
    return Verdict.MISSING_RANK
