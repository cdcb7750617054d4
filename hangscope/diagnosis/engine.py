"""``diagnose``: a `Trace` goes in, a `Diagnosis` comes out. Pure, and linear in records."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.causes.contradictions import doubt_contradicted, doubt_silent_aborts
from hangscope.diagnosis.causes.explain import graph_causes
from hangscope.diagnosis.causes.remote_calls import name_handlers
from hangscope.diagnosis.causes.settle import conflict_causes, crash_causes, mismatch_causes, settle
from hangscope.diagnosis.context import SECOND_NS, Context
from hangscope.diagnosis.differences.callsites import note_first_parting
from hangscope.diagnosis.differences.crossed import doubt_crossed_pairs
from hangscope.diagnosis.differences.group_order import with_group_order
from hangscope.diagnosis.differences.worlds import world_causes
from hangscope.diagnosis.ends.giving_up import before_the_first_gave_up
from hangscope.diagnosis.ends.latecomers import without_latecomers
from hangscope.diagnosis.ends.own_doing import judge, killed_together
from hangscope.diagnosis.ends.swept import not_before_last_record, swept_up
from hangscope.diagnosis.groups.hypotheses import by_meshes
from hangscope.diagnosis.groups.memberships import with_believable_members
from hangscope.diagnosis.model import Confidence, Diagnosis, Finding, Verdict, WaitEdge
from hangscope.diagnosis.processes.embedded import with_original_exceptions
from hangscope.diagnosis.quiet.nothing_found import without_cause
from hangscope.diagnosis.records.compared import with_compared_operations
from hangscope.diagnosis.records.counters import with_first_numbers, with_own_counters
from hangscope.diagnosis.records.frontier import frontiers
from hangscope.diagnosis.records.laid_numbers import with_laid_numbers
from hangscope.diagnosis.records.mismatch import mismatches, parted_before
from hangscope.diagnosis.waiting import lasting
from hangscope.diagnosis.waiting.moments import moment_of
from hangscope.diagnosis.waiting.overtaken import doubt_dumped_before, doubt_overtaken
from hangscope.diagnosis.waiting.waits import Builder
from hangscope.diagnosis.words.findings import to_finding
from hangscope.diagnosis.words.ranks import rank_reports
from hangscope.diagnosis.words.sentences import rank_s
from hangscope.trace.clocks import align_clocks
from hangscope.trace.model import NONE, Trace

_BELIEVABLE_S = 7 * 86_400.0
_SHOWN_CORRUPTIONS = 5
_MAX_EDGES = 2000
_SHOWN_PARTINGS = 8


def diagnose(trace: Trace) -> Diagnosis:
    """Say who diverged, where and why.

    Args:
        trace: one job at one moment; ``trace.records`` sorted by rank, then in order of issue.

    Returns:
        The diagnosis; its findings come first cause first. Never raises on odd input: what
        cannot be used is left out and lowers the confidence.
    """
    return by_meshes(trace, _judge) or _judge(trace)


def _judge(trace: Trace) -> Diagnosis:
    """The diagnosis of a trace with the groups that it has."""
    given, trace = trace, align_clocks(trace)
    skewed = trace is not given
    trace = with_compared_operations(with_original_exceptions(trace))
    trace, concluded = with_believable_members(trace)
    trace, laid = with_laid_numbers(with_own_counters(with_first_numbers(trace)))
    trace = without_latecomers(before_the_first_gave_up(trace))
    front = frontiers(trace)
    hosts = swept_up(trace, front, not_before_last_record(trace, judge(trace)))
    together = killed_together(trace, hosts)
    if together is not None:
        hosts = lasting.as_victims(hosts)
    builder = Builder(trace, front, hosts)
    context = Context(trace, front, hosts, builder.build())
    lasting.overdue_only(context)
    moment = moment_of(context)
    if moment is not None:
        lasting.forget_waiting(context)
    # One that left nothing may be the one whose failure the launcher answered with SIGTERM.
    answered = together == "SIGTERM" and bool(trace.missing_ranks)
    if together is not None and not answered:
        lasting.lasting_only(context)
    parted = mismatches(trace, front)
    if any(place.waiters for place in context.waits.places):
        parted += parted_before(trace, front, {m.group for m in parted})
    found: list[Cause] = mismatch_causes(context, parted)
    if not found:
        found += conflict_causes(context)
    found += graph_causes(context)
    found += world_causes(context, found)
    found = with_group_order(context, found)
    doubt_crossed_pairs(context, found)
    name_handlers(context, found)
    found += crash_causes(context, found)
    found = settle(context, found)
    lasting.doubt_staircases(context, found)
    lasting.doubt_unobserved(context, found)
    lasting.doubt_short_waits(context, found)
    _doubt_concluded(context, found, concluded)
    _doubt_any_source(context, found)
    _doubt_laid(context, found, laid)
    _doubt_local_ranks(context, found)
    _doubt_announced(context, found)
    doubt_overtaken(context, found)
    doubt_dumped_before(context, found)
    doubt_contradicted(context, found)
    doubt_silent_aborts(context, found)
    if skewed:
        _doubt_times(found)
    for cause in found[:_SHOWN_PARTINGS]:
        note_first_parting(context, cause)
    findings = tuple(to_finding(context, cause) for cause in found)
    notes: list[str] = []
    if together is not None:
        notes.append(f"every rank was ended from outside ({together}) at about the same time")
    if not findings:
        if moment is not None:
            notes.append(moment.remark)
        quiet = without_cause(context, together, moment)
        findings = quiet.findings
        notes += quiet.notes
        if not findings and trace.missing_ranks:
            notes.append(f"{rank_s(trace.missing_ranks)} left no dump: nothing is known of them")
    return _assemble(context, findings, notes)


def _doubt_concluded(context: Context, causes: list[Cause], groups: frozenset[int]) -> None:
    """No answer is certain that rests on members nobody listed."""
    for cause in causes:
        here = [context.waits.places[i] for i in cause.places]
        if any(place.group in groups for place in here):
            cause.doubt("who belongs to the group is concluded, no source lists it")
        halves = [place.half for place in here if place.group in groups]
        takers = {half.rank for half in halves if half is not None and half.peer == NONE}
        if takers.issuperset(cause.culprits) and cause.verdict is Verdict.DEADLOCK_CYCLE:
            _accuse_nobody(cause, "a receive from any source may be for a member nobody lists")


def _doubt_any_source(context: Context, causes: list[Cause]) -> None:
    """A circle through a receive that names no sender stands only if nobody else could send.

    Recorders that leave partners out make all receives such ones.
    """
    for cause in causes:
        if cause.verdict is not Verdict.DEADLOCK_CYCLE:
            continue
        here = [context.waits.places[i] for i in cause.places]
        named = {
            rank
            for p in here
            for rank in p.waiters
            if p.half is None or p.half.is_send or p.half.peer != NONE
        }
        takers = {p.half.rank for p in here if p.half is not None} - named
        if takers & set(cause.culprits):
            _accuse_nobody(cause, "whose message the receive waits for is not recorded")


def _doubt_laid(context: Context, causes: list[Cause], groups: frozenset[int]) -> None:
    """Nor one that rests on numbers which were concluded from times and the order of issue."""
    for cause in causes:
        here = {context.waits.places[i].group for i in cause.places}
        if cause.mismatch is not None:
            here.add(cause.mismatch.group)
        if here & groups:
            cause.doubt(
                "which records are of one operation is concluded from their order and times"
            )


def _accuse_nobody(cause: Cause, why: str) -> None:
    cause.verdict, cause.confidence = Verdict.INCONCLUSIVE, Confidence.LIKELY
    cause.victims, cause.culprits = cause.victims | set(cause.culprits), ()
    cause.unknowns.append(why)


def _doubt_times(causes: list[Cause]) -> None:
    """Where clocks had to be corrected, only what needs no times is certain."""
    for cause in causes:
        if cause.mismatch is None and not cause.conflict:
            cause.doubt("the clocks of the hosts disagree")


def _doubt_local_ranks(context: Context, causes: list[Cause]) -> None:
    """A launcher that told a local rank only may have been that of another node."""
    guessed = {c.reporter for c in context.trace.claims if c.details.get("by_local_rank")}
    for cause in causes:
        if guessed.intersection(cause.culprits) and cause.verdict is Verdict.RANK_CRASHED:
            cause.doubt(
                "the log gives a local rank or a task's number; on another node it is another rank"
            )


def _doubt_announced(context: Context, causes: list[Cause]) -> None:
    """Of what a log announced the last lines may be missing, and nobody said that he waits."""
    if any(c.details.get("announced") for c in context.trace.claims):
        for cause in causes:
            cause.doubt("what was issued is told by the log's announcements, which may lack some")


def _assemble(context: Context, findings: tuple[Finding, ...], notes: list[str]) -> Diagnosis:
    trace = context.trace
    first = findings[0] if findings else None
    backends = sorted({g.backend for g in trace.groups if g.backend})
    if not backends:
        backends = sorted({s.backend for s in trace.signatures if s.backend})
    world = trace.world_size
    if world is None:
        ranks = set(trace.ranks) | set(trace.missing_ranks)
        world = len(ranks) or None
    stalled: float | None = None
    if first is not None and trace.observed_ns and context.newest_ns:
        stalled = max(0.0, (trace.observed_ns - context.newest_ns) / SECOND_NS)
        if not trace.live and stalled > _BELIEVABLE_S:
            stalled = None  # the files were copied since: their dates tell nothing
    culprits: tuple[int, ...]
    if first is None:
        verdict, culprits, confidence, summary = (
            Verdict.HEALTHY,
            (),
            Confidence.LIKELY if trace.missing_ranks else Confidence.CERTAIN,
            "Nothing waits for longer than it should",
        )
    else:
        verdict, culprits, confidence, summary = (
            first.verdict,
            first.culprits,
            first.confidence,
            first.summary,
        )
    return Diagnosis(
        verdict=verdict,
        culprits=culprits,
        confidence=confidence,
        summary=summary,
        world_size=world,
        backend=", ".join(backends),
        stalled_s=stalled,
        live=trace.live,
        ranks=rank_reports(context, findings),
        findings=findings,
        wait_for=_edges(context) if findings else (),
        sources=trace.sources,
        warnings=trace.warnings,
        notes=(*notes, *_corruptions(trace)),
    )


def _corruptions(trace: Trace) -> list[str]:
    """What checks of all-reduces found: no hang, but nothing to keep to oneself."""
    found = [c for c in trace.claims if c.kind == "reduction_corrupt"]
    notes = [f"silent corruption: {claim.text}" for claim in found[:_SHOWN_CORRUPTIONS]]
    if len(found) > len(notes):
        notes.append(f"and {len(found) - len(notes)} more corrupt all-reduces")
    return notes


def _edges(context: Context) -> tuple[WaitEdge, ...]:
    """The wait-for edges, at most `_MAX_EDGES` of them: one target per waiter comes first."""
    edges = []
    for place in context.waits.places:
        known = 0 <= place.group < len(context.trace.groups)
        group = context.trace.groups[place.group].name if known else place.phase
        label = context.trace.groups[place.group].label if known else place.phase
        op = context.place_op(place)
        targets = place.targets
        # In a circle of large groups everybody waits for everybody: a few targets tell as much.
        shown = targets if len(targets) * len(place.waiters) <= 4096 else targets[:4]
        for waiter in place.waiters:
            if waiter in context.waits.cut:
                continue
            edges += [
                WaitEdge(waiter, on, group, place.seq, op, label) for on in shown if on != waiter
            ]
            if len(edges) >= _MAX_EDGES:
                return tuple(edges[:_MAX_EDGES])
    return tuple(edges)
