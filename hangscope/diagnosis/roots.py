"""Ranks that are waited for and wait for nobody, and those of which nothing is left."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.cause import Cause, began
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.ends import own_errors
from hangscope.diagnosis.evidence import cut_short, half_told, recorded_ranks, told_of_only
from hangscope.diagnosis.host import End, is_unseen
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.sentences import rank_s
from hangscope.diagnosis.stacks import innermost
from hangscope.diagnosis.stores import PREFIX, without_store_waits
from hangscope.trace.model import NONE


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
    gone = {r for r in told_of_only(context.trace) if context.hosts[r].end is End.TORN_DOWN}
    lost = [r for r in roots if r not in context.trace.ranks or r in gone]
    known = [r for r in roots if r not in lost]
    held = set(known)
    known = without_store_waits(known, context.hosts)
    held -= set(known)
    causes: list[Cause] = []
    by_kind: dict[Verdict, list[int]] = defaultdict(list)
    for rank in known:
        by_kind[_verdict_of_root(context, rank, waited_for[rank])].append(rank)
    for verdict, ranks in by_kind.items():
        sets = Union(ranks)
        member = set(ranks)
        for index in {i for r in ranks for i in waited_for[r]}:
            sets.join([r for r in waits.places[index].targets if r in member])
        for part in sets.parts():
            part = _first_to_fail(context, verdict, part)
            places = sorted({i for r in part for i in waited_for[r]})
            causes += _root_cause(context, verdict, tuple(sorted(part)), places)
    if held:
        _hold_up(context, causes, held)
    explained: set[int] = set()
    for cause in causes:
        explained |= waits.reachers(cause.culprits, cause.places)
    causes += _lost(context, lost, waited_for, explained)
    return causes


def _hold_up(context: Context, causes: list[Cause], held: set[int]) -> None:
    """Ranks that did not come because they wait for a key are victims of those who did not either.

    Who sets a key is not recorded, so nothing of the kind is certain.
    """
    behind = held | context.waits.reachers(held)
    for cause in causes:
        cause.victims |= behind - set(cause.culprits)
        if cause.verdict is not Verdict.RANK_CRASHED and cause.confidence is Confidence.CERTAIN:
            cause.confidence = Confidence.LIKELY
        for rank in sorted(held)[:4]:
            phase = context.trace.ranks[rank].phases[-1]
            key = f" {phase.detail!r}" if phase.detail else ""
            cause.evidence.append(f"rank {rank} waits in {phase.name}{key} for another rank")
        cause.unknowns.append("who is to set the key that is waited for in the store")


def _first_to_fail(context: Context, verdict: Verdict, ranks: list[int]) -> list[int]:
    """Of ranks that crashed, those whose failure does not speak of somebody else's."""
    if verdict is not Verdict.RANK_CRASHED:
        return ranks
    return [r for r in ranks if not context.hosts[r].secondary] or ranks


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
        cause.confidence = Confidence.LIKELY
        cause.unknowns.append("what the accused issued is not on record; nobody else is left")
    if all(waits.places[i].phase.startswith(PREFIX) for i in places):
        cause.confidence = Confidence.LIKELY if len(ranks) == 1 else Confidence.AMBIGUOUS
        cause.unknowns.append("who is to set the key that is waited for in the store")
    if verdict is Verdict.RANK_CRASHED and all(is_unseen(context.trace.ranks[r]) for r in ranks):
        cause.doubt(
            "nobody saw how the accused ended: one that was stopped, or in which C code holds the "
            "GIL, falls silent as well"
        )
    if verdict is Verdict.RANK_CRASHED and all(context.hosts[r].secondary for r in ranks):
        cause.doubt("what they failed of speaks of somebody else's failure")
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
        odd = _odd_one(context, ranks, places)
        if odd:
            cause.verdict = Verdict.COLLECTIVE_MISMATCH
            cause.culprits = odd
            cause.odd_one = True
            cause.confidence = Confidence.LIKELY
            cause.victims = set(ranks)
            cause.sides = [ranks, odd]
            cause.places = [i for i in places if set(waits.places[i].waiters) & set(odd)]
    return [cause]


def _only_aborted(context: Context, ranks: tuple[int, ...]) -> bool:
    """Whether nothing is known of these ends but that the processes aborted themselves."""
    hosts = [context.hosts[rank] for rank in ranks]
    own = own_errors(context.trace.claims)
    return all(
        h.secondary and h.end_text == "killed by SIGABRT" for h in hosts
    ) and not own.keys() & {*ranks}


def _odd_one(context: Context, absent: tuple[int, ...], places: list[int]) -> tuple[int, ...]:
    """The ranks that wait, where fewer ranks wait than are waited for and those are at one.

    Three ranks that all finished are not wrong because a fourth issued one more collective.
    """
    waits = context.waits
    if any(waits.places[i].phase or waits.places[i].p2p for i in places):
        return ()
    waiters = sorted({r for i in places for r in waits.places[i].waiters})
    unknown = {r for i in places for r in waits.places[i].unknown}
    if len(waiters) + len(unknown) >= len(absent) or len(absent) < 2:
        return ()
    if len({waits.places[i].group for i in places}) != 1:
        return ()
    fronts = {context.last_in_group(r, waits.places[places[0]].group)[0] for r in absent}
    if len(fronts) != 1:
        return ()
    hosts = [context.hosts.get(r) for r in absent]
    if any(h is not None and h.state in ("stopped", "gil-held") for h in hosts):
        return ()
    doing = set()
    for rank, host in zip(absent, hosts, strict=True):
        facts = context.trace.ranks.get(rank)
        if host is None or facts is None:
            return ()
        if host.end is End.CLEAN or facts.finalized:
            doing.add("finished")
        elif host.phase is not None:
            doing.add(host.phase)
        else:
            frame = innermost(host.stack)
            doing.add(f"{frame.filename}:{frame.name}" if frame is not None else "")
    return tuple(waiters) if len(doing) == 1 else ()


def _verdict_of_root(context: Context, rank: int, places: list[int]) -> Verdict:
    host = context.hosts[rank]
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


def _lost(
    context: Context, lost: list[int], waited_for: dict[int, list[int]], explained: set[int]
) -> list[Cause]:
    """Ranks without a dump, where someone waits for them and nothing else explains it."""
    waits = context.waits
    accused = []
    # Who shares a group with a known cause may well be waiting for it too.
    excused = {
        r
        for place in waits.places
        if explained.intersection(place.waiters)
        for r in place.unknown
        if place.absent or place.behind
    }
    for rank in lost:
        if rank in excused:
            continue
        waiters = {w for i in waited_for[rank] for w in waits.places[i].waiters}
        if waiters - explained:
            accused.append(rank)
    made_up = any(not g.ranks for g in context.trace.groups)
    if not accused or (made_up and explained):
        return []  # who shares a group with the known cause is not listed
    places = sorted({i for r in accused for i in waited_for[r]})
    idle = _idle_beside(context, accused)
    if 0 < len(idle) <= len(accused):
        # Were the lost rank the cause, its neighbours would be waiting for it.
        cause = Cause(Verdict.MISSING_RANK, idle, places, Confidence.LIKELY, began(context, places))
        cause.victims = set(accused)
        return [cause]
    first_ns = began(context, places)
    total = len(set(context.trace.ranks) | set(context.gaps))
    # Half a world without dumps is a collection that failed, or one node's log: who of the missing
    # is waited for says nothing about what the others of them do.
    silent = max(len(accused), len(context.gaps))
    if silent * 2 >= total and (silent > 1 or _one_rank_s_log(context)):
        cause = Cause(Verdict.INCONCLUSIVE, (), places, Confidence.LIKELY, first_ns)
        cause.unknowns.append(f"{silent} of {total} ranks left no dump")
        cause.victims = {w for i in places for w in waits.places[i].waiters}
        return [cause]
    if cut_short(context.trace):
        cause = Cause(Verdict.INCONCLUSIVE, (), places, Confidence.LIKELY, first_ns)
        cause.unknowns.append(f"{rank_s(accused)} may have spoken after the end of this excerpt")
        cause.victims = {w for i in places for w in waits.places[i].waiters}
        return [cause]
    confidence = Confidence.LIKELY if len(accused) == 1 else Confidence.AMBIGUOUS
    return [Cause(Verdict.RANK_LOST, tuple(sorted(accused)), places, confidence, first_ns)]


def _one_rank_s_log(context: Context) -> bool:
    """Whether all that was given is what one rank printed: it says nothing of the others."""
    return len(context.trace.ranks) < 2 and context.trace.only_logs


def _idle_beside(context: Context, lost: list[int]) -> tuple[int, ...]:
    """Ranks in a group with a lost one that wait for nobody although the job stands still."""
    beside = {r for g in context.trace.groups if set(lost) & set(g.ranks) for r in g.ranks}
    beside &= recorded_ranks(context.trace)
    return tuple(
        sorted(
            r
            for r in beside
            if not context.waits.places_of.get(r)
            and not context.hosts[r].gone
            and not context.trace.ranks[r].finalized
            and _lags(context, r)
        )
    )


def _lags(context: Context, rank: int) -> bool:
    """Whether the rank is less far in one of its groups than others are in groups of that kind.

    One that is as far as anybody has no part of its own left to do.
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
    return not len(context.pairs_of_rank.get(rank, ()))
