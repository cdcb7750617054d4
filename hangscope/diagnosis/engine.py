"""``diagnose``: takes a `Trace`, returns a `Diagnosis`. Pure, and linear in the number of records.

docs/diagnosis.md lists the steps and the rules that each of them follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.causes.busy_ranks import doubt_at_work
from hangscope.diagnosis.causes.consequences import without_consequences
from hangscope.diagnosis.causes.contradictions import (
    doubt_contradicted,
    doubt_ends,
    doubt_own_report,
)
from hangscope.diagnosis.causes.crashes import crash_causes
from hangscope.diagnosis.causes.doubts import (
    Concluded,
    doubt_clocks,
    doubt_concluded,
    doubt_cut_off,
    doubt_gaps,
    doubt_logs,
    doubt_standing,
    doubt_unheard,
)
from hangscope.diagnosis.causes.graph_causes import graph_causes
from hangscope.diagnosis.causes.mismatches import (
    conflict_causes,
    doubt_unknown_operations,
    habit_causes,
    mismatch_causes,
)
from hangscope.diagnosis.causes.outliers import doubt_equal_sides
from hangscope.diagnosis.causes.remote_calls import name_handlers
from hangscope.diagnosis.causes.sibling_causes import in_lanes
from hangscope.diagnosis.causes.vanished_hosts import name_all_that_vanished
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.differences.callsites import with_first_parting
from hangscope.diagnosis.differences.crossed_p2p import doubt_crossed_pairs
from hangscope.diagnosis.differences.group_creation_order import with_group_order
from hangscope.diagnosis.differences.world_conflicts import world_causes
from hangscope.diagnosis.exits.after_standstill import (
    not_before_last_record,
    without_ends_after_standstill,
)
from hangscope.diagnosis.exits.external_stop import Stop, stop_of
from hangscope.diagnosis.exits.first_timeout import before_the_first_gave_up
from hangscope.diagnosis.exits.late_arrivals import without_latecomers
from hangscope.diagnosis.exits.primary_failures import judge
from hangscope.diagnosis.exits.vanished_hosts import with_vanished
from hangscope.diagnosis.groups.memberships import with_believable_members
from hangscope.diagnosis.groups.mesh_hypotheses import by_meshes
from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.diagnosis.no_cause.monitor_verdict import with_said_live
from hangscope.diagnosis.no_cause.nothing_found import without_cause
from hangscope.diagnosis.processes.embedded_exceptions import with_original_exceptions
from hangscope.diagnosis.records.counters import with_first_numbers, with_own_counters
from hangscope.diagnosis.records.frontier import frontiers
from hangscope.diagnosis.records.inferred_numbers import with_laid_numbers
from hangscope.diagnosis.records.mismatch import mismatches, parted_before
from hangscope.diagnosis.records.refused_calls import with_compared_operations
from hangscope.diagnosis.records.unobserved_p2p import with_lone_halves
from hangscope.diagnosis.waiting import wait_doubts, wait_duration
from hangscope.diagnosis.waiting.early_dumps import (
    doubt_dumped_before,
    doubt_overtaken,
    without_dumps_of,
)
from hangscope.diagnosis.waiting.graph_builder import GraphBuilder
from hangscope.diagnosis.waiting.snapshots import Moment, moment_of
from hangscope.diagnosis.wording.answer import answer
from hangscope.diagnosis.wording.findings import to_finding
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.sibling_findings import told_as_one
from hangscope.diagnosis.wording.unattributed_messages import with_unsigned_words
from hangscope.trace.clocks import align_clocks
from hangscope.trace.model import Trace

_SHOWN_PARTINGS = 8


@dataclass(frozen=True, slots=True)
class _Standstill:
    """Who waits for whom, and the evidence against a hang."""

    context: Context
    stop: Stop | None
    """What ended every rank from outside, if anything did."""
    moment: Moment | None
    """The evidence that the dumps show a job that was still moving, if there is any."""


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
    return by_meshes(trace, _judge) or _judge(trace)


def _judge(trace: Trace) -> Diagnosis:
    """The diagnosis of a trace, taking its groups as given.

    If a few dumps that were written too early leave it inconclusive, the diagnosis without these
    dumps counts.
    """
    found, too_early = _judged(trace)
    if found.verdict is not Verdict.INCONCLUSIVE or not 0 < 2 * len(too_early) < len(trace.ranks):
        return found
    others, _ = _judged(without_dumps_of(trace, too_early))
    named = set(others.culprits)
    return others if named and not named & {*trace.missing_ranks, *too_early} else found


def _judged(trace: Trace) -> tuple[Diagnosis, frozenset[int]]:
    """The diagnosis, and the ranks whose dumps were written too early to be used."""
    trace, concluded = _comparable(trace)
    job = _standstill(trace)
    causes, too_early = _doubted(job.context, _causes(job.context), concluded)
    shown, rest = causes[:_SHOWN_PARTINGS], causes[_SHOWN_PARTINGS:]
    causes = [*(with_first_parting(job.context, cause) for cause in shown), *rest]
    lanes = in_lanes(job.context, causes)
    findings = tuple(told_as_one([to_finding(job.context, c) for c in one]) for one in lanes)
    notes: list[str] = []
    stop = job.stop
    if stop is not None:
        when = "they were told at one moment" if stop.told_ns else "all at about the same time"
        notes.append(f"every rank was ended from outside ({stop.way}), {when}")
    if not findings:
        if job.moment is not None:
            notes.append(job.moment.remark)
        quiet = without_cause(job.context, stop.way if stop is not None else None, job.moment)
        findings = (quiet,) if quiet is not None else ()
        if not findings and trace.missing_ranks:
            notes.append(f"{rank_s(trace.missing_ranks)} left no dump: nothing is known of them")
    findings = with_unsigned_words(job.context, with_said_live(job.context, findings))
    return answer(job.context, findings, notes), too_early


def _comparable(given: Trace) -> tuple[Trace, Concluded]:
    """The trace with times, members and sequence numbers that mean the same on every rank."""
    trace = align_clocks(given)
    skewed = trace is not given
    trace = with_compared_operations(with_original_exceptions(with_vanished(trace)))
    trace, members = with_believable_members(trace)
    trace, numbers = with_laid_numbers(with_own_counters(with_first_numbers(trace)))
    trace, halves = with_lone_halves(without_latecomers(before_the_first_gave_up(trace)))
    return trace, Concluded(members, numbers, clocks=skewed, halves=halves)


def _standstill(trace: Trace) -> _Standstill:
    """Who waits for whom, counting only real waits."""
    front = frontiers(trace)
    processes = not_before_last_record(trace, judge(trace))
    processes = without_ends_after_standstill(trace, front, processes)
    stop = stop_of(trace, front, processes)
    if stop is not None:
        processes = wait_duration.as_victims(processes, stop.told_ns)
    context = Context(trace, front, processes, GraphBuilder(trace, front, processes).build())
    wait_duration.overdue_only(context)
    moment = moment_of(context)
    if moment is not None:
        context.waits.forget_all()
    # A rank that left nothing may have failed, and SIGTERM may be the launcher's reaction to that.
    answered = stop is not None and stop.way == "SIGTERM" and bool(trace.missing_ranks)
    if stop is not None and not answered:
        wait_duration.lasting_only(context)
    return _Standstill(context, stop, moment)


def _causes(context: Context) -> list[Cause]:
    """All independent causes, the first one first."""
    parted = mismatches(context.trace, context.front)
    if any(place.waiters for place in context.waits.places):
        parted += parted_before(context.trace, context.front, {m.group for m in parted})
    found = mismatch_causes(context, parted)
    if not found:
        found += [*conflict_causes(context), *habit_causes(context)]
    found += graph_causes(context)
    found += world_causes(context, found)
    found = with_group_order(context, found)
    found = doubt_crossed_pairs(context, found)
    found = name_handlers(context, found)
    found = name_all_that_vanished(context, found)
    found += crash_causes(context, found)
    return without_consequences(context, found)


def _doubted(
    context: Context, causes: list[Cause], concluded: Concluded
) -> tuple[list[Cause], frozenset[int]]:
    """The causes, weakened where the evidence does not support them; reasons appear in this order.

    Also returns the ranks whose dumps were written too early to be used.
    """
    causes = wait_doubts.doubt_staircases(context, causes)
    causes = wait_doubts.doubt_unobserved(context, causes)
    causes = wait_doubts.doubt_short_waits(context, causes)
    causes = wait_doubts.doubt_ended_early(context, causes)
    causes = doubt_equal_sides(context, causes)
    causes = doubt_unknown_operations(context, causes)
    causes = doubt_concluded(context, causes, concluded)
    causes = doubt_logs(context, causes)
    causes = doubt_unheard(context, causes)
    causes = doubt_at_work(context, causes)
    causes = doubt_cut_off(context, causes)
    causes = doubt_standing(context, causes)
    causes, overtaken = doubt_overtaken(context, causes)
    causes, dumped_before = doubt_dumped_before(context, causes)
    causes = doubt_contradicted(context, causes)
    causes = doubt_own_report(context, causes)
    causes = doubt_ends(context, causes)
    causes = doubt_clocks(causes, concluded)
    return doubt_gaps(context, causes), overtaken | dumped_before
