"""Doubts from when the evidence was taken: dumps of a moving job, clocks, silent nodes."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.observability import is_followed, snapshots
from hangscope.diagnosis.processes.failures import lost_a_peer
from hangscope.diagnosis.processes.process_state import End, in_communication, is_unseen
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.records.pace import standstill_s
from hangscope.diagnosis.waiting.early_dumps import dumped_before, went_on_after_dump
from hangscope.diagnosis.waiting.wait_duration import SLOW_S, is_beyond_any_timeout
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.model import Flag, RankFacts, Stack, flagged
from hangscope.trace.rows import last_event_ns
from hangscope.trace.units import SECOND_NS

_UNHEARD_NS = 30 * SECOND_NS
"""The monitor of a stalled node reports three times within this time."""
_FROM_OUTSIDE = ("py-spy", "signal", "log")
"""Sources of stacks that are not of the moment of a record."""


def clocks(context: Context, cause: Cause) -> str:
    """If clocks had to be aligned, only what needs no times is certain."""
    needs_none = cause.mismatch is not None or bool(cause.conflict)
    return "the clocks of the hosts disagree" if context.inferred.clocks and not needs_none else ""


def silent_node(context: Context, cause: Cause) -> str:
    """Ranks whose node fell silent may have moved on since."""
    trace = context.trace
    if not trace.live:
        return ""
    concerned = context.waits.waiters_at(cause.places).union(cause.culprits)
    silent_ns = {
        rank: trace.observed_ns - facts.observed_ns
        for rank in concerned
        if (facts := trace.ranks.get(rank)) is not None and facts.alive
        if 0 < facts.observed_ns < trace.observed_ns - _UNHEARD_NS
    }
    if not silent_ns:
        return ""
    longest_s = max(silent_ns.values()) / SECOND_NS
    return f"the node of {rank_s(silent_ns)} was last heard from {longest_s:.0f} s ago"


def staggered(context: Context, cause: Cause) -> str:
    """Where a backend records no completion (native Gloo) and every waiter of the accused is at a
    place of its own, the dumps may show a moving job, dumped rank by rank."""
    if context.trace.live or any(h.state != "unknown" for h in context.processes.values()):
        return ""
    places = context.waits.at(cause.places)
    groups, steps = {p.group for p in places}, {p.seq for p in places}
    if len(groups) != 1 or len(steps) < 2:
        return ""
    records = context.trace.records
    here = flagged(records["flags"][records["group"] == places[0].group], Flag.UNOBSERVED)
    if len(steps) < sum(len(p.waiters) for p in places) or not here.any():
        return ""
    return (
        "this backend records no completion and each rank is at a different place: the job may "
        "have been moving while the dumps were taken"
    )


def short_wait(context: Context, cause: Cause) -> str:
    """Dumps that no timeout triggered: a rank may just have been slow."""
    trace = context.trace
    if trace.live or cause.crossed:
        return ""
    if is_followed(trace):
        return ""
    if any(c.kind == "timeout" for c in trace.claims):
        return ""
    if any(f.alive is not None or f.exit or f.phases for f in trace.ranks.values()):
        return ""
    shown = {rank for rank, facts in trace.ranks.items() if facts.threads}
    if cause.culprits and shown.issuperset(cause.culprits):
        return ""
    waited_s = context.longest_wait_s(context.waits.at(cause.places))
    if 0 < waited_s < SLOW_S:
        waiters = context.waits.waiters_at(cause.places)
        if all(_is_dated_by_records(context, rank) for rank in waiters):
            return "no credible date says how long anybody had waited when the dumps were written"
        return f"the dumps were written when nobody had waited there for more than {waited_s:.0f} s"
    if is_beyond_any_timeout(context, context.longest_wait_s(context.waits.places)):
        return (
            "the files are older than any timeout: it is not known how long anybody had waited "
            "when they were written"
        )
    return ""


def _is_dated_by_records(context: Context, rank: int) -> bool:
    """Whether a rank's file has no credible date: its newest record stands for it."""
    low, high = context.bounds.get(rank, (0, 0))
    last_ns = last_event_ns(context.trace.records[low:high])
    return 0 < last_ns == context.trace.ranks[rank].observed_ns


def undated(context: Context, cause: Cause) -> str:
    """Without arrival times in the dumps, a moving job looks like a stuck one."""
    dated = any(p.began_ns for p in context.waits.at(cause.places))
    if dated or cause.culprits or not snapshots(context.trace):
        return ""
    return "nothing says for how long these ranks have waited"


def went_on(context: Context, cause: Cause) -> str:
    """A rank moved on after its dump was written, as other dumps show."""
    early = went_on_after_dump(context, cause)
    if not early:
        return ""
    return (
        f"{rank_s(early)} went on after being dumped: others have finished what is unfinished "
        "in those dumps, so the job was moving; dump all ranks again at one moment"
    )


def dumped_early(context: Context, cause: Cause) -> str:
    """The accused may have arrived since; if nobody is accused, a member may have ended since."""
    early = dumped_before(context, cause)
    if not early:
        return ""
    since = "" if cause.culprits else ", and may have ended since"
    return f"{rank_s(early)} had been dumped before the others waited for long{since}"


def stuck_in_early_dump(context: Context, cause: Cause) -> str:
    """What only early dumps show as unfinished is not stuck."""
    early = dumped_before(context, cause)
    return dumped_early(context, cause) if early and early == cause.culprits else ""


def stack_contradicts(context: Context, cause: Cause) -> str:
    """A stack taken from outside shows the accused inside a collective, and its record does not."""
    for rank in cause.culprits[:8]:
        stack = _outside_stack(context.trace.ranks.get(rank))
        if in_communication(stack) and rank in context.bounds and not context.waits.out(rank):
            return (
                f"the record of rank {rank} has nothing unfinished, and its stack shows it waiting "
                f"for other ranks at {where(innermost(stack))}: one of the two is older, or the "
                "record lacks this wait"
            )
    return ""


def _outside_stack(facts: RankFacts | None) -> Stack:
    if facts is None or facts.heartbeat_ns:
        return ()
    main = [t for t in facts.threads if t.is_main and t.source in _FROM_OUTSIDE]
    return max(main, key=lambda t: t.sampled_ns).stack if main else ()


def undated_failure(context: Context, cause: Cause) -> str:
    """A log says that another rank failed on its own but not when: perhaps before all that is
    recorded."""
    for rank, process in context.processes.items():
        undated = process.failed and context.trace.ranks[rank].failed_undated
        if undated and rank not in cause.culprits:
            failed = shortened(process.end_text)
            return f"rank {rank} failed with {failed}, and nothing says when"
    return ""


def failed_unrecorded(context: Context, cause: Cause) -> str:
    """Python's hook for uncaught exceptions wrote to a log, and that rank's recorder knows none."""
    for rank, facts in context.trace.ranks.items():
        error = facts.printed
        if error is not None and not error.may_be_handled and rank not in cause.culprits:
            return (
                f"rank {rank} failed with {shortened(error.line)} according to a log, and its "
                "recorder knows nothing of it: is the log of this run?"
            )
    return ""


def failed_after_waiting(context: Context, cause: Cause) -> str:
    """The accused lived to write a dump in which it waits for others; its failure is undated."""
    if len(cause.culprits) != 1:
        return ""
    (failed,) = cause.culprits
    facts = context.trace.ranks.get(failed)
    if facts is None or not facts.failed_undated or facts.heartbeat_ns:
        return ""
    places = [p for p in context.waits.places if failed in p.waiters and p.absent]
    awaited = sorted({r for p in places for r in p.absent})
    gone = any(context.processes[r].gone for r in awaited if r in context.processes)
    if failed not in snapshots(context.trace) or not awaited or gone:
        return ""
    return (
        f"whether the job stood still because of {rank_s(awaited)} before that: rank {failed} had "
        "written a dump in which it waits for them"
    )


def fell_silent(context: Context, cause: Cause) -> str:
    """A member that ended unobserved, well before the others stopped waiting, may have ended on its
    own."""
    if cause.culprits:
        return ""
    limit_s, early = standstill_s(context.trace), set[int]()
    for place in context.waits.at(cause.places):
        ages = {rank: context.age_s(rank, place.began_ns) or 0.0 for rank in place.waiters}
        if max(ages.values(), default=0.0) >= limit_s:
            early |= {r for r, age in ages.items() if age < limit_s and _ended_unseen(context, r)}
    return f"nothing was heard from {rank_s(early)} while the others waited" if early else ""


def _ended_unseen(context: Context, rank: int) -> bool:
    return context.processes[rank].gone and is_unseen(context.trace.ranks[rank])


def connections_broke(context: Context, cause: Cause) -> str:
    """Whatever broke connections right away hit a moving job: nothing was stuck before."""
    if cause.culprits:
        return ""
    waited_s = _until_connections_broke_s(context, cause)
    if waited_s is None or waited_s >= standstill_s(context.trace):
        return ""
    return f"what broke the connections: nobody had waited for more than {waited_s:.1f} s"


def _until_connections_broke_s(context: Context, cause: Cause) -> float | None:
    """How long the first waiter had waited when a peer's connection was lost; None after other
    ends."""
    waiters = context.waits.waiters_at(cause.places)
    lost_ns = []
    for rank in waiters:
        error = context.trace.ranks[rank].exception
        if error is not None and lost_a_peer(error):
            lost_ns.append(error.at_ns)
        elif context.processes[rank].end is not End.TORN_DOWN:
            return None
    since_ns = [place.began_ns for place in context.waits.at(cause.places)]
    if not lost_ns or not all((*lost_ns, *since_ns)):
        return None
    return max(0.0, (min(lost_ns) - min(since_ns)) / SECOND_NS)
