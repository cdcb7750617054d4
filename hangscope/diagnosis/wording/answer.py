"""The whole diagnosis: the first finding's verdict, the rank table, wait edges and remarks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Waits
from hangscope.diagnosis.model import Confidence, Diagnosis, Finding, RankReport, Verdict, WaitEdge
from hangscope.diagnosis.observability import recorders, snapshots
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.diagnosis.wording.host_words import missing_evidence
from hangscope.trace.model import Trace
from hangscope.trace.units import SECOND_NS

_BELIEVABLE_S = 7 * 86_400.0
_SHOWN_CORRUPTIONS = 5
_LATEST_NS = 2**63 - 1
_MANY_EDGES = 4096
_SHOWN_AWAITED, _MANY_AWAITED = 64, 65_536
"""The most awaited ranks shown of one rank, and about the most of all together."""
_FEW = 4
"""Targets shown for every waiter, however many edges there are."""


def answer(context: Context, findings: tuple[Finding, ...], notes: Sequence[str]) -> Diagnosis:
    """Combine the findings, first cause first, and what is known about the job into a diagnosis."""
    trace = context.trace
    findings = tuple(_without_claim(finding) for finding in findings)
    first = findings[0] if findings else _healthy(trace)
    return Diagnosis(
        verdict=first.verdict,
        culprits=first.culprits,
        confidence=first.confidence,
        summary=first.summary,
        world_size=_world_size(trace),
        backend=", ".join(_backends(trace)),
        stalled_s=_stalled_s(context) if findings else None,
        live=trace.live and trace.current,
        began_ns=_began_ns(trace),
        ranks=rank_reports(context, findings),
        findings=findings,
        wait_for=_edges(context) if findings else (),
        sources=trace.sources,
        warnings=trace.warnings,
        notes=(*notes, *_corruptions(trace)),
        missing=missing_evidence(trace),
    )


def _without_claim(finding: Finding) -> Finding:
    """What names nobody is not likely either: nothing decides between the ranks."""
    if finding.verdict is not Verdict.INCONCLUSIVE:
        return finding
    return replace(finding, confidence=Confidence.AMBIGUOUS)


def _began_ns(trace: Trace) -> int:
    """The first recorded moment of the job."""
    times = [facts.started_ns for facts in trace.ranks.values()]
    times.append(int(trace.records["created_ns"].min(initial=_LATEST_NS)))
    return min((at for at in times if 0 < at < _LATEST_NS), default=0)


def _healthy(trace: Trace) -> Finding:
    """The placeholder if nothing was found; it is not listed among the findings."""
    return Finding(
        verdict=Verdict.HEALTHY,
        culprits=(),
        victims=(),
        confidence=Confidence.CERTAIN
        if _all_told(trace) and not _takes_one_for_several(trace)
        else Confidence.LIKELY,
        summary="Nothing waits for longer than it should",
    )


def _all_told(trace: Trace) -> bool:
    """Whether every rank left a record of its own, if any did.

    What a journal or another rank says about a rank does not show what it issued.
    """
    own = recorders(trace)
    all_speak = not own or own.issuperset(range(trace.world_size or 0))
    return all_speak and not trace.missing_ranks


def _takes_one_for_several(trace: Trace) -> bool:
    """Whether dumps use a group that no source lists: its name may stand for several groups.

    What its members seem to have finished together may then be operations of different groups.
    """
    used = np.unique(trace.records["group"]).tolist()
    return bool(snapshots(trace)) and any(
        group >= 0 and not trace.groups[group].listed for group in used
    )


def _backends(trace: Trace) -> list[str]:
    of_groups = {g.backend for g in trace.groups if g.backend}
    return sorted(of_groups or {s.backend for s in trace.signatures if s.backend})


def _world_size(trace: Trace) -> int | None:
    if trace.world_size is not None:
        return trace.world_size
    return len({*trace.ranks, *trace.missing_ranks}) or None


def _stalled_s(context: Context) -> float | None:
    """For how long (s) nothing has moved; None if unknown."""
    trace = context.trace
    if not trace.observed_ns or not context.newest_ns:
        return None
    stalled_s = max(0.0, (trace.observed_ns - context.newest_ns) / SECOND_NS)
    # Files that were copied later have meaningless dates.
    return stalled_s if trace.live or stalled_s <= _BELIEVABLE_S else None


def _corruptions(trace: Trace) -> list[str]:
    """Results of all-reduce checks: not a hang, but worth reporting."""
    found = [c for c in trace.claims if c.kind == "reduction_corrupt"]
    notes = [f"silent corruption: {claim.text}" for claim in found[:_SHOWN_CORRUPTIONS]]
    if len(found) > len(notes):
        notes.append(f"and {len(found) - len(notes)} more corrupt all-reduces")
    return notes


def _edges(context: Context) -> tuple[WaitEdge, ...]:
    """The wait-for edges: all of them, or a few per waiter if there are very many.

    In a cycle of large groups every rank waits for every other: a few targets show as much. But no
    waiter is left out, which would look as if it waited for nobody.
    """
    places = context.waits.places
    waiting = sum(len(place.waiters) for place in places)
    breadth = max(_FEW, _MANY_EDGES // max(waiting, 1))
    edges: list[WaitEdge] = []
    for place in places:
        known = 0 <= place.group < len(context.trace.groups)
        group = context.trace.groups[place.group].name if known else place.phase
        label = context.trace.groups[place.group].label if known else place.phase
        op = context.place_op(place)
        shown = place.targets[: breadth + 1]  # one more, in case the waiter is a target itself
        for waiter in place.waiters:
            if waiter in context.waits.cut:
                continue
            others = [on for on in shown if on != waiter][:breadth]
            edges += [WaitEdge(waiter, on, group, place.seq, op, label) for on in others]
    return tuple(edges)


def rank_reports(context: Context, findings: tuple[Finding, ...]) -> tuple[RankReport, ...]:
    """Every rank of the job, dumped or not, in rank order."""
    culprits = {r for f in findings for r in f.culprits}
    victims = {r for f in findings for r in f.victims}
    everybody = sorted(set(context.trace.ranks) | set(context.trace.missing_ranks))
    hung = bool(findings)
    most = max(_FEW, min(_SHOWN_AWAITED, _MANY_AWAITED // max(len(everybody), 1)))
    lowest = functools.cache(functools.partial(_lowest_targets, context.waits, most + 1))
    return tuple(_report(context, r, culprits, victims, hung, most, lowest) for r in everybody)


def _report(
    context: Context,
    rank: int,
    culprits: set[int],
    victims: set[int],
    hung: bool,
    most_awaited: int,
    lowest: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> RankReport:
    facts = context.trace.ranks.get(rank)
    process = context.processes.get(rank)
    waits = tuple(context.waits.out(rank)) if hung else ()
    places = context.waits.at(waits)
    role = (
        "culprit"
        if rank in culprits
        else "victim"
        if rank in victims
        else "bystander"
        if facts is not None
        else "unknown"
    )
    if facts is None or process is None:
        return RankReport(rank, role, "lost")
    state = process.state
    if places and process.end in (End.ALIVE, End.UNKNOWN) and not process.cannot_run:
        state = "waiting"
    if process.end is End.TORN_DOWN and state == "crashed":
        state = "ended"  # what ended it came from outside, or from other ranks
    exception = facts.exception
    stack = process.stack or (exception.stack if exception is not None else ())
    began = min((p.began_ns for p in places if p.began_ns), default=0)
    if not stack and places:
        stack = context.stack(places[0].row)
    return RankReport(
        rank=rank,
        role=role,
        state=state,
        host=facts.host,
        pid=facts.pid,
        waiting_for=tuple(r for r in lowest(waits) if r != rank)[:most_awaited],
        waiting_s=context.shown_age_s(rank, began) if began else None,
        last=context.last_operation(rank),
        stack=user_frames(stack),
        phase=process.phase,
        exit=process.end_text or None,
    )


def _lowest_targets(waits: Waits, most: int, indices: tuple[int, ...]) -> tuple[int, ...]:
    """The lowest of the ranks that are awaited at these places.

    Of a place only so many are looked at: in a large job, thousands of ranks wait for thousands.
    """
    return tuple(sorted({r for place in waits.at(indices) for r in place.targets[:most]}))
