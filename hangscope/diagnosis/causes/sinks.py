"""Sinks: ranks that others wait for and that wait for nobody, or whose waiting explains nothing.

A rank that is stopped, or whose GIL something holds, could not record completions since: whatever
it had started may be over long ago. Only if its caller cannot have returned, because some rank
never arrived, is it held up by that rank like any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.cause import Cause, began
from hangscope.diagnosis.causes.awaited_ranks import (
    UNKNOWN_KEY_SETTER,
    cause_against,
    gave_up,
    keys_waited_for,
)
from hangscope.diagnosis.causes.lost import lost_ranks
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.first_timeout import came_too_late
from hangscope.diagnosis.exits.primary_failures import first_to_fail, own_errors
from hangscope.diagnosis.graph.places import INIT, NEW_GROUP, Place, Waits
from hangscope.diagnosis.graph.store_places import without_store_waits
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.observability import runs_on_host
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.records.blocking_calls import blocks_caller
from hangscope.diagnosis.records.kinds import is_one_sided
from hangscope.diagnosis.wording.phrases import rank_s


class DisjointSets:
    """Disjoint sets of ranks."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.parent = {r: r for r in ranks}

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


def sink_causes(context: Context, sinks: list[int]) -> list[Cause]:
    """Causes for ranks that others wait for and that wait for nobody."""
    waits = context.waits
    waited_for = waits.waited_for()
    sinks = [r for r in sinks if waited_for.get(r)]
    lost = [r for r in sinks if context.left_nothing(r)]
    held = set(sinks).difference(lost)
    asked = sorted(held) if lost or context.bounds else []
    waited = [r for r in asked if _left_only_a_timeout(context, r)]
    held.difference_update(waited)
    known = sorted(held)
    known = without_store_waits(known, context.processes)
    held -= set(known)
    causes: list[Cause] = []
    if waited and not (lost or known or held):
        causes.append(_unknown_wait(context, waited, waited_for))
    by_kind: dict[Verdict, list[int]] = defaultdict(list)
    for rank in known:
        by_kind[_verdict_of_sink(context, rank, waited_for[rank])].append(rank)
    for verdict, ranks in by_kind.items():
        sets = DisjointSets(ranks)
        member = set(ranks)
        for index in {i for r in ranks for i in waited_for[r]}:
            sets.join([r for r in waits.places[index].targets if r in member])
        for part in sets.parts():
            first = _first_to_fail(context, verdict, part)
            places = tuple(sorted({i for r in first for i in waited_for[r]}))
            cause = cause_against(context, verdict, tuple(sorted(first)), places)
            causes.append(replace(cause, victims=cause.victims | (set(part) - set(first))))
    if held:
        behind = held | waits.reachers(held)
        keys = keys_waited_for(context, sorted(held))
        causes = [_holding_up(cause, behind, keys) for cause in causes]
    explained: set[int] = set()
    for cause in causes:
        explained |= waits.reachers(cause.culprits, cause.places)
    causes += lost_ranks(context, lost, waited_for, explained)
    return causes


def _left_only_a_timeout(context: Context, rank: int) -> bool:
    """Whether all that is left of a rank's wait is its timeout message.

    Its record is gone, or covers only its device while it waited on the host. Such a rank explains
    nothing if another may.
    """
    return gave_up(context, rank) and (rank not in context.bounds or _on_the_host(context, rank))


def _on_the_host(context: Context, rank: int) -> bool:
    """Whether a rank timed out over a host's backend, of which its record holds nothing."""
    low, high = context.bounds[rank]
    used = np.unique(context.trace.records["signature"][low:high])
    recorded = {context.trace.signatures[i].backend for i in used.tolist() if i >= 0}
    return context.processes[rank].failure.timed_out_on_host and not any(
        map(runs_on_host, recorded)
    )


def _unknown_wait(context: Context, ranks: list[int], waited_for: dict[int, list[int]]) -> Cause:
    """Others wait for ranks that waited themselves and left only a final message."""
    places = tuple(sorted({i for r in ranks for i in waited_for[r]}))
    lines = sorted({where(innermost(context.processes[r].stack)) for r in ranks} - {""})
    at = f" at {', '.join(lines[:4])}" if lines else ""
    everybody = context.waits.waiters_at(places).union(ranks)
    return Cause(
        Verdict.INCONCLUSIVE,
        (),
        places,
        Confidence.LIKELY,
        began(context, places),
        frozenset(everybody),
        unknowns=(f"what {rank_s(ranks)} gave up waiting in{at}: it is not on record",),
    )


def _holding_up(cause: Cause, held: set[int], keys: list[str]) -> Cause:
    """Ranks that wait for a key are victims of other ranks that did not arrive.

    It is not recorded who sets a key, so nothing of this is certain.
    """
    more = replace(cause, victims=cause.victims | (held - set(cause.culprits)))
    more = more.with_evidence(*keys)
    if cause.verdict is Verdict.RANK_CRASHED:
        return more.with_unknown(UNKNOWN_KEY_SETTER)
    return more.doubted(UNKNOWN_KEY_SETTER)


def _first_to_fail(context: Context, verdict: Verdict, ranks: list[int]) -> list[int]:
    """Of ranks that crashed, the first one whose failure is not about another rank's."""
    if verdict is not Verdict.RANK_CRASHED:
        return ranks
    own = [r for r in ranks if not context.processes[r].secondary] or ranks
    return [process.rank for process in first_to_fail([context.processes[r] for r in own])]


def _verdict_of_sink(context: Context, rank: int, places: list[int]) -> Verdict:
    waits = context.waits.places
    process = context.processes[rank]
    waiting = [context.processes.get(w) for i in places for w in waits[i].waiters]
    if came_too_late(process, waiting, context.trace.ranks):
        return Verdict.MISSING_RANK
    if process.end is End.CRASHED or rank in own_errors(context.trace.claims):
        return Verdict.RANK_CRASHED
    if process.end is End.CLEAN:
        return Verdict.RANK_EXITED
    at = [waits[i] for i in places if rank in waits[i].behind]
    inside = len(at) == len(places) or any(not place.p2p for place in at)
    if process.state == "stopped" and inside:
        return Verdict.STUCK_COLLECTIVE  # it has issued its part and cannot carry it out
    only_p2p = all(place.p2p for place in context.waits.at(places))
    seen_elsewhere = bool(process.stack) or process.phase is not None or process.frozen
    if only_p2p and not seen_elsewhere:
        return Verdict.P2P_UNMATCHED
    return Verdict.MISSING_RANK


def without_own_waiting(context: Context) -> set[int]:
    """Awaited ranks whose own waiting explains nothing: they ended, or cannot run."""
    waited_for = context.waits.waited_for()
    found, halted = set(), set()
    for rank, process in context.processes.items():
        if rank in waited_for and process.ended_by_itself:
            found.add(rank)
        elif rank in waited_for and process.cannot_run:
            halted.add(rank)
    return found | (halted - _held_up(context, halted))


def needs_a_cause(waits: Waits, place: Place) -> bool:
    """Whether a place that everybody has reached hangs: a rank that can run is stuck there."""
    return any(rank not in waits.cut for rank in place.waiters)


def _held_up(context: Context, ranks: set[int]) -> set[int]:
    """Those of the ranks that would still wait if they could run: some rank never arrived."""
    waits = context.waits
    places = {i: waits.places[i] for r in ranks for i in waits.places_of.get(r, ())}
    lasting = {i for i, p in places.items() if p.absent and not p.weak}
    if not lasting:
        return set()
    blocking = blocks_caller(context.trace)
    return {
        rank
        for rank in ranks
        for i in lasting.intersection(waits.places_of.get(rank, ()))
        if _is_blocked(context, rank, places[i], blocking)
    }


def _is_blocked(
    context: Context, rank: int, place: Place, blocking: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> bool:
    """Whether the rank's caller cannot have returned before all have reached a place."""
    if place.phase:
        return place.phase in (INIT, NEW_GROUP)
    if place.p2p:
        return bool(blocking[place.row])
    row = context.row_of(place.group, rank, place.seq)
    signature = context.signature(row) if row >= 0 else None
    return signature is not None and bool(blocking[row]) and not is_one_sided(signature)
