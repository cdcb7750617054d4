"""Jobs that stood still without a recorded wait of one rank for another."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.model import Finding, Verdict
from hangscope.diagnosis.no_cause.inconclusive import inconclusive, nobody
from hangscope.diagnosis.no_cause.lingering_processes import left_standing
from hangscope.diagnosis.no_cause.roll_call import any_moves
from hangscope.diagnosis.observability import end_is_unseen
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.records.pace import longest_silence_s
from hangscope.diagnosis.wording.blocked import blocked_in
from hangscope.diagnosis.wording.phrases import capital, rank_s
from hangscope.diagnosis.wording.stack_summary import places_of_threads, where_to_look
from hangscope.trace.facts import Phase
from hangscope.trace.model import Flag
from hangscope.trace.units import SECOND_NS

_LONGER = 2.0
"""A silence must last this many times longer than any before it, from which the job went on."""
_UNSEEN_ENDS = "no rank waits for another on record; what its device has finished is not known"


def stood_before_the_end(context: Context) -> float:
    """For how long (s) no rank had issued or finished anything when the first one was ended."""
    ends = [h.end_ns for h in context.processes.values() if h.end_ns]
    if not ends or not context.newest_ns:
        return 0.0
    return (min(ends) - context.newest_ns) / SECOND_NS


def stopped_after_a_standstill(context: Context) -> Finding | None:
    """Ranks with work left were ended after `Trace.timeout_s` of silence.

    Others may have exited cleanly before; then it is not recorded what these waited for.
    """
    stopped = {
        rank: process.end_ns
        for rank, process in sorted(context.processes.items())
        if process.end is End.TORN_DOWN
        and process.end_ns
        and not context.trace.ranks[rank].finalized
    }
    if not stopped or not context.newest_ns:
        return None
    stood_s = (min(stopped.values()) - context.newest_ns) / SECOND_NS
    if stood_s < context.trace.timeout_s:
        return None
    who = f"{rank_s([*stopped])} {'were' if len(stopped) > 1 else 'was'}"
    return replace(
        inconclusive(context),
        summary=f"Nothing was issued for {lasting(stood_s)} before {who} ended, "
        "and nothing shows why",
    )


def never_began(context: Context) -> Finding | None:
    """Ranks ended before any had issued anything, while all were blocked in something that does not
    return by itself, `Trace.timeout_s` after they had started."""
    processes, ranks = context.processes, context.trace.ranks
    ends = [process.end_ns for process in processes.values() if process.end_ns]
    started = [facts.started_ns for facts in ranks.values() if facts.started_ns]
    if context.newest_ns or not ends or not started or not all(map(blocked_in, processes.values())):
        return None
    stood_s = (min(ends) - min(started)) / SECOND_NS
    if stood_s < context.trace.timeout_s:
        return None
    places = places_of_threads(context)
    return replace(
        inconclusive(context),
        summary=f"{capital(rank_s([*processes]))} had issued nothing for {lasting(stood_s)} when "
        f"{'they were' if len(processes) > 1 else 'it was'} ended",
        why="all of them were in something that does not return on its own",
        fix=f"look at what is waited for there: {places[0]}",
        evidence=places,
    )


def _does_not_begin(context: Context) -> Finding | None:
    """A running job in which no rank has issued anything and all are in something that does not
    return by itself. They have been running for long enough; whether in that place, only more looks
    can tell."""
    trace, processes = context.trace, context.processes
    waits = all(h.end is End.ALIVE and (blocked_in(h) or h.cannot_run) for h in processes.values())
    started_ns = max((facts.started_ns for facts in trace.ranks.values()), default=0)
    lived_s = (trace.observed_ns - started_ns) / SECOND_NS
    if trace.missing_ranks or not waits or not started_ns or lived_s < trace.timeout_s:
        return None
    places = places_of_threads(context)
    first = places[0] if len(places) > 1 else places[0].partition(": ")[2]
    stand = "stand" if len(processes) > 1 else "stands"
    return nobody(
        f"The job has not begun, and {rank_s([*processes])} {stand} "
        f"still{': ' if len(places) > 1 else ' '}{first}",
        "no rank has issued anything: none waits for another in a collective",
        f"look at what is waited for {first}",
        verdict=Verdict.QUIESCENT,
        evidence=places,
        unchanged_s=trace.timeout_s,
    )


def after_silence(context: Context) -> Finding | None:
    """A running job: ``quiescent`` once it has been silent for `Trace.timeout_s`, else None.

    If some ranks are done already, the report says which ones do not end.
    """
    trace = context.trace
    newest = context.newest_ns
    if not newest or not trace.observed_ns:
        moving = trace.looks < 2 or any_moves(context, polls=True)
        return None if moving else _does_not_begin(context)
    silent_s = (trace.observed_ns - newest) / SECOND_NS
    # A single process owes nobody an operation, unless it shares a group with another job's.
    alone = trace.world_size == 1 and not any(group.outsiders for group in trace.groups)
    if silent_s < trace.timeout_s or any_moves(context) or alone or trace.looks < 2:
        return None
    if silent_s < _LONGER * longest_silence_s(trace):
        return None
    finishing = any(h.end is End.CLEAN for h in context.processes.values()) or any(
        f.finalized and f.leaving is not None for f in trace.ranks.values()
    )
    if finishing:
        return left_standing(context)
    return quiescent(context, silent_s)


def of_dumps(context: Context) -> Finding | None:
    """Dumps of processes nobody looked at: all is finished, and yet somebody dumped them."""
    if (context.trace.records["flags"] & int(Flag.UNOBSERVED)).any():
        return inconclusive(context)  # unknown whether the last operations finished
    front, numbers = context.front, context.trace.records["collective_seq"]
    if (front.pending > 0).any() or (front.unfinished & ~front.p2p & (numbers <= 0)).any():
        return inconclusive(context)  # somebody waits, but not known for whom
    if len(context.trace.missing_ranks) >= len(context.trace.ranks):
        return inconclusive(context)  # half of the ranks tell too little of the others
    return quiescent(context, None)


def quiescent(context: Context, silent_s: float | None) -> Finding:
    """The finding that nobody issues anything; ``silent_s``: for how long, if known."""
    last = None
    for rank in sorted(context.trace.ranks):
        last = last or context.last_operation(rank)
    # A dump of active entries only has counters, but no name for what they count.
    where = f" ({f'{last.op} ' if last.op else ''}#{last.seq})" if last is not None else ""
    since = f" for {lasting(silent_s)}" if silent_s is not None else ""
    # A job that only replays graphs is silent: it must be seen to stand, and for as long.
    silent = context.trace.live and any(f.unobservable for f in context.trace.ranks.values())
    seen = all(_end_is_seen(context, rank) for rank in context.trace.ranks)
    did = "finished" if seen else "issued"
    summary, why, fix = stuck_in_destruction(context) or Words(
        f"{_went_to(context, did, where)} and none has issued another{'' if silent else since}",
        "no rank waits in a collective" if seen else _UNSEEN_ENDS,
        where_to_look(context),
    )
    return nobody(
        summary,
        why,
        fix,
        verdict=Verdict.QUIESCENT,
        evidence=places_of_threads(context),
        unchanged_s=context.trace.timeout_s if silent else 0.0,
    )


def _went_to(context: Context, did: str, where: str) -> str:
    """What the ranks did last: the same, as far as their records show."""
    lasts = {context.last_operation(rank) for rank in context.trace.ranks} - {None}
    ends = {(last.op, last.seq) for last in lasts if last is not None}
    if len(ends) < 2:
        return f"Every rank {did} the same last collective{where}"
    return f"No rank waits for another in what it {did} last"


def _end_is_seen(context: Context, rank: int) -> bool:
    """Whether the state of a rank's newest operation is known."""
    row, front = context.last_row(rank), context.front
    if row < 0:
        return True
    if not end_is_unseen(context.trace, row):
        return True
    record = context.trace.records[row]
    pairs = context.pairs_of_rank[rank]
    here = pairs[front.group[pairs] == record["group"]]
    # A backend's own counter covers its collectives.
    return not front.p2p[row] and bool((front.completed[here] >= record["collective_seq"]).all())


_DESTROY = "destroy_process_group"


def stuck_in_destruction(context: Context) -> Words | None:
    """Summary, mechanism and advice; None unless all ranks are there."""
    trace = context.trace
    phases = [_destroys(facts.phases) for facts in trace.ranks.values()]
    begun = [phase.since_ns for phase in phases if phase is not None]
    if not begun or len(begun) < len(phases) or trace.missing_ranks:
        return None
    spent_s = (trace.observed_ns - max(begun)) / SECOND_NS
    return Words(
        f"Every rank has been inside {_DESTROY} for {lasting(spent_s)}",
        "the backend frees its communicators only when nothing uses them any more: NCCL waits for "
        "every CUDA graph in which collectives were captured",
        f"before {_DESTROY}, wait for every Work, synchronise the device and delete CUDA graphs "
        "that hold collectives; py-spy dump --native shows what it waits for",
    )


def _destroys(phases: tuple[Phase, ...]) -> Phase | None:
    return next((phase for phase in phases if phase.name == _DESTROY), None)
