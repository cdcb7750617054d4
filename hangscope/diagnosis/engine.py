"""``diagnose``: takes a `Trace`, returns a `Diagnosis`. Pure, and linear in the number of records.

docs/diagnosis.md describes the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.causes.consequences import without_consequences
from hangscope.diagnosis.causes.crashes import accuse_first_gone, crash_causes
from hangscope.diagnosis.causes.departures import with_departures
from hangscope.diagnosis.causes.differing_models import weigh_models
from hangscope.diagnosis.causes.graph_causes import graph_causes
from hangscope.diagnosis.causes.mismatches import conflict_causes, mismatch_causes
from hangscope.diagnosis.causes.sibling_causes import merged_finding, sibling_causes
from hangscope.diagnosis.context import Context, Inferred
from hangscope.diagnosis.differences.callsites import with_first_divergence
from hangscope.diagnosis.differences.crossed_p2p import doubt_crossed_p2p
from hangscope.diagnosis.differences.group_creation_order import with_creation_order
from hangscope.diagnosis.differences.world_conflicts import world_causes
from hangscope.diagnosis.doubts.doubt import acquitted, capped
from hangscope.diagnosis.doubts.table import DOUBTS
from hangscope.diagnosis.exits.after_standstill import (
    not_before_last_record,
    without_ends_after_standstill,
)
from hangscope.diagnosis.exits.first_timeout import rewound_to_first_timeout
from hangscope.diagnosis.exits.primary_failures import judge_ends
from hangscope.diagnosis.exits.stops import Stop, external_stop
from hangscope.diagnosis.exits.vanished_hosts import accuse_all_vanished, with_vanished
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.groups.memberships import with_credible_members
from hangscope.diagnosis.model import Diagnosis
from hangscope.diagnosis.no_cause.monitor_verdict import overcome, with_monitor_verdict
from hangscope.diagnosis.no_cause.nothing_found import without_cause
from hangscope.diagnosis.processes.embedded_exceptions import with_original_exceptions
from hangscope.diagnosis.records.counters import with_first_numbers, with_own_counters
from hangscope.diagnosis.records.frontier import frontiers
from hangscope.diagnosis.records.mismatch import diverged_before, mismatches
from hangscope.diagnosis.records.refused_calls import with_refused_calls
from hangscope.diagnosis.records.unobserved_p2p import with_unpaired_halves
from hangscope.diagnosis.waiting import wait_duration
from hangscope.diagnosis.waiting.graph_builder import GraphBuilder
from hangscope.diagnosis.waiting.snapshots import Snapshot, snapshot_of
from hangscope.diagnosis.waiting.without_timeout import (
    LEAST_S,
    anybody_waits,
    needs_no_timeout,
)
from hangscope.diagnosis.wording.answer import answer
from hangscope.diagnosis.wording.findings import to_finding, with_hosts
from hangscope.diagnosis.wording.host_words import with_common_hosts, with_unreachable_hosts
from hangscope.diagnosis.wording.logs import with_logs
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.tolerated_waits import tolerated_wait
from hangscope.trace.clocks import align_clocks
from hangscope.trace.model import Trace
from hangscope.trace.nccl.communicators import without_sides

_SHOWN_DIVERGENCES = 8


@dataclass(frozen=True, slots=True)
class _Standstill:
    """Who waits for whom, and the evidence against a hang."""

    context: Context
    stop: Stop | None
    """What ended every rank from outside, if anything did."""
    snapshot: Snapshot | None
    """The evidence that the dumps show a job that was still moving, if there is any."""
    tolerated: tuple[Place, ...]
    """Where ranks wait, or waited when the job was ended, but not for long enough."""


def diagnose(trace: Trace) -> Diagnosis:
    """Say who diverged, where and why.

    Parameters
    ----------
    trace:
        One job at one moment; ``trace.records`` sorted by rank, then in order of issue.

    Returns
    -------
    Diagnosis
        The diagnosis, its findings ordered by cause, the first one first. Never raises on odd
        input: what cannot be used is left out and lowers the confidence.
    """
    found = _judge(trace)
    patient = trace.live and trace.timeout_s > LEAST_S and not found.findings
    if patient and anybody_waits(trace):
        early = _judge(replace(trace, timeout_s=LEAST_S))
        return early if needs_no_timeout(trace, early) else found
    return found


def _judge(trace: Trace) -> Diagnosis:
    """The diagnosis of a trace, taking its timeout as given."""
    trace, inferred = _comparable(trace)
    job = _standstill(trace, inferred)
    found = [acquitted(job.context, cause) for cause in _causes(job.context)]
    causes = [capped(job.context, cause, DOUBTS) for cause in found]
    shown, rest = causes[:_SHOWN_DIVERGENCES], causes[_SHOWN_DIVERGENCES:]
    causes = [*(with_first_divergence(job.context, cause) for cause in shown), *rest]
    merged = sibling_causes(job.context, causes)
    findings = tuple(merged_finding([to_finding(job.context, c) for c in one]) for one in merged)
    notes: list[str] = []
    stop = job.stop
    if stop is not None:
        when = "they were told at one moment" if stop.told_ns else "all at about the same time"
        when = f", {when}" if len(trace.ranks) > 1 else ""
        who = "every rank that left a record" if trace.missing_ranks else "every rank"
        notes.append(f"{who} was ended from outside ({stop.way}){when}")
    if not findings:
        if job.snapshot is not None:
            notes.append(job.snapshot.remark)
        quiet = without_cause(job.context, stop.way if stop is not None else None, job.snapshot)
        findings = (quiet,) if quiet is not None else ()
        if not findings and trace.missing_ranks:
            notes.append(f"{rank_s(trace.missing_ranks)} left no record: nothing is known of them")
        if not findings and (waiting := tolerated_wait(job.context, job.tolerated)) is not None:
            notes.append(waiting)
    findings = with_logs(job.context, with_monitor_verdict(job.context, findings))
    notes += overcome(job.context)
    findings = with_unreachable_hosts(job.context, with_hosts(job.context, findings))
    findings = with_common_hosts(job.context, findings)
    return answer(job.context, findings, notes)


def _comparable(given: Trace) -> tuple[Trace, Inferred]:
    """The trace with times, members and sequence numbers that mean the same on every rank."""
    given = without_sides(given)
    trace = align_clocks(given)
    skewed = trace is not given
    trace = with_refused_calls(with_original_exceptions(with_vanished(trace)))
    trace, members = with_credible_members(trace)
    trace = rewound_to_first_timeout(with_own_counters(with_first_numbers(trace)))
    trace, halves = with_unpaired_halves(trace)
    return trace, Inferred(members, clocks=skewed, halves=halves)


def _standstill(trace: Trace, inferred: Inferred) -> _Standstill:
    """Who waits for whom, counting only real waits."""
    front = frontiers(trace)
    processes = not_before_last_record(trace, judge_ends(trace))
    processes = without_ends_after_standstill(trace, front, processes)
    stop = external_stop(trace, front, processes)
    if stop is not None:
        processes = wait_duration.as_victims(processes, stop.told_ns)
    waits = GraphBuilder(trace, front, processes).build()
    context = Context(trace, front, processes, waits, inferred)
    tolerated = wait_duration.overdue_only(context)
    snapshot = snapshot_of(context)
    if snapshot is not None:
        context.waits.forget_all()
    # A rank that left nothing may have failed, and SIGTERM may be the launcher's reaction to that.
    answered = stop is not None and stop.way == "SIGTERM" and bool(trace.missing_ranks)
    if stop is not None and not answered:
        tolerated += wait_duration.lasting_only(context)
    return _Standstill(context, stop, snapshot, tolerated)


def _causes(context: Context) -> list[Cause]:
    """All independent causes, the first one first."""
    diverged = mismatches(context.trace, context.front)
    if any(place.waiters for place in context.waits.places):
        diverged += diverged_before(context.trace, context.front, {m.group for m in diverged})
    found = mismatch_causes(context, diverged)
    if not found:
        found += conflict_causes(context)
    found = with_departures(context, found + graph_causes(context))
    found += world_causes(context, found)
    found = with_creation_order(context, found)
    found = doubt_crossed_p2p(context, found)
    found = accuse_all_vanished(context, found)
    found += crash_causes(context, found)
    found = accuse_first_gone(context, found)
    return without_consequences(context, [weigh_models(context, cause) for cause in found])
