"""Jobs that do not end: only the launcher waits, nobody is in a collective.

Ranks whose program is over may live on: before it exits, Python waits for every non-daemon thread
and then for whatever is registered to run at exit. Other ranks may be stuck in what one rank does
when all are done: an upload, an evaluation, a program it has started.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.no_cause.inconclusive import nobody
from hangscope.diagnosis.processes.process_state import End, ProcessState, is_working
from hangscope.diagnosis.processes.stacks import innermost, is_library, is_over, where
from hangscope.diagnosis.wording.blocked import blocked_in
from hangscope.diagnosis.wording.phrases import capital, rank_s, verb
from hangscope.diagnosis.wording.stack_summary import places_of_threads
from hangscope.trace.facts import STALE_HEARTBEATS
from hangscope.trace.model import RankFacts
from hangscope.trace.units import SECOND_NS

_TEARDOWN_S = 30.0
"""Libraries may take this long to release resources on a machine under memory pressure."""
_SHOWN = 8


class _Lingering(NamedTuple):
    """A rank whose program is over while its process lives on."""

    rank: int
    since_ns: int
    until_ns: int
    alive: bool
    why: str
    fix: str


def lingering(context: Context) -> Finding | None:
    """The finding if only such ranks are left of a job, for at least `Trace.timeout_s`.

    None if any rank is still in its program (then the others do not matter), or if they are
    working: an exiting rank may have something to write first.
    """
    trace = context.trace
    # Other nodes may know more about their ranks, but an end known here is final.
    if (trace.missing_ranks and not trace.live) or (trace.live and trace.looks < 2):
        return None
    left: list[_Lingering] = []
    for rank, facts in sorted(trace.ranks.items()):
        process = context.processes[rank]
        if process.end is End.CLEAN and not facts.freed_ns:
            continue
        one = _lingers(context, facts, process)
        if one is None:
            return None
        left.append(one)
    if not left:
        return None
    newest_ns = max(context.newest_ns, *(one.since_ns for one in left))
    stood_s = (min(one.until_ns for one in left) - newest_ns) / SECOND_NS
    return _finding(left, stood_s) if stood_s >= trace.timeout_s else None


def left_standing(context: Context) -> Finding | None:
    """The finding if others have ended and a rank that is still in its program stands still.

    Only further looks can tell whether that lasts: what one rank does at the end may take any time,
    provided it does anything.
    """
    left = [
        rank
        for rank, facts in sorted(context.trace.ranks.items())
        if context.processes[rank].end is End.ALIVE and facts.leaving is None
    ]
    if not left or not all(context.processes[rank].stack for rank in left):
        return None
    process, several = context.processes[left[0]], len(left) > 1
    at = where(innermost(process.stack))
    waits_for = f": {words}" if (words := blocked_in(process)) else ""
    of = "the ranks seen here" if context.trace.missing_ranks else "the job"
    return nobody(
        f"{capital(rank_s(left))} {verb(left, 'is')} all that is left of {of}, and "
        f"{'have' if several else 'has'} not moved from {at}{waits_for}",
        "all others have ended: nobody but the launcher waits for what is left",
        f"look at {at}{f' on rank {left[0]}' if several else ''}: give what it waits for a time "
        "limit",
        verdict=Verdict.QUIESCENT,
        evidence=places_of_threads(context),
        unchanged_s=context.trace.timeout_s,
    )


def _lingers(context: Context, facts: RankFacts, process: ProcessState) -> _Lingering | None:
    phase = facts.leaving
    if phase is None or not phase.since_ns or (process.frozen and process.end is End.ALIVE):
        return None
    if process.end not in (End.ALIVE, End.TORN_DOWN) and not facts.freed_ns:
        return None
    if is_working(facts) and not facts.freed_ns:  # activity after that is part of its exit
        return None
    # For a process that recorded its own end earlier, all of that is the end of its program.
    until_ns = facts.freed_ns or max(context.now_ns(facts.rank), facts.observed_ns)
    if _is_torn_down(facts) and until_ns - phase.since_ns < _TEARDOWN_S * SECOND_NS:
        return None
    why, fix = _why(facts, process, phase.since_ns)
    alive = process.end is End.ALIVE and not facts.freed_ns
    return _Lingering(facts.rank, phase.since_ns, until_ns, alive, why, fix)


def _why(facts: RankFacts, process: ProcessState, since_ns: int) -> tuple[str, str]:
    """What keeps the process alive, and what to do about it."""
    waits = blocked_in(process)
    if process.wait is not None and process.wait.kind == "child":
        return (
            waits,
            "end that process before the program's last line, or start it as a daemon "
            "(multiprocessing joins all others at exit)",
        )
    inside = f": {waits}" if waits else ""
    if _is_torn_down(facts):
        return (
            f"what runs last when it exits does not return{inside}",
            "py-spy dump --native shows where it is: functions registered with atexit before "
            "HangScope, or a library's own teardown (a device, a C++ thread)",
        )
    sampled = max((t.sampled_ns for t in facts.threads if t.source == "sample"), default=0)
    now = [t for t in facts.threads if t.sampled_ns == sampled and sampled > since_ns]
    main = next((t.stack for t in now if t.is_main), ())
    if not is_over(main):
        at = where(innermost(main))
        why = f"a function that runs at exit is at {at}{inside}" if at else "it has begun to exit"
        return why, f"look at {at or 'what runs at exit'}: it does not return"
    kept_by = [t for t in now if t.daemon is False and not t.is_main]
    names = "a non-daemon thread (py-spy dump shows which)"
    if kept_by:
        own = [frame for frame in kept_by[0].stack if not is_library(frame)]
        at = where(own[0] if own else kept_by[0].stack[-1])
        more = f" and {len(kept_by) - 1} more" if len(kept_by) > 1 else ""
        names = f"thread {kept_by[0].name} ({at}){more}"
    return (
        f"it waits for {names}",
        "tell that thread to stop and join it before the program's last line (executors wait for "
        "their tasks), or start it with daemon=True: Python waits for every non-daemon thread",
    )


def _is_torn_down(facts: RankFacts) -> bool:
    """Whether the interpreter is being torn down, judged by HangScope's own end in it.

    Its watcher thread ends there: if it has been silent for this long, it has ended.
    """
    beats_ns = int(STALE_HEARTBEATS * SECOND_NS * (facts.heartbeat_interval_s or 1.0))
    return facts.observed_ns - facts.heartbeat_ns > beats_ns


def _finding(left: list[_Lingering], stood_s: float) -> Finding:
    alike: dict[str, list[int]] = defaultdict(list)
    for one in left:
        alike[one.why].append(one.rank)
    why, first = next(iter(alike.items()))
    ranks = [one.rank for one in left]
    several = len(left) > 1
    processes = f"{verb(ranks, 'its')} process{'es' * several}"
    lasts = f"ago and {processes} {verb(ranks, 'has')} not ended"
    if not all(one.alive for one in left):
        lasts = f"before {processes} {verb(ranks, 'was')} stopped"
    of = f" on {rank_s(first)}" if len(alike) > 1 else ""
    found = nobody(
        f"The program{'s' * several} of {rank_s(ranks)} {verb(ranks, 'was')} over "
        f"{lasting(stood_s)} {lasts}: {why}{of}",
        "no rank waits in a collective: the launcher waits for the processes to end",
        left[0].fix,
        verdict=Verdict.QUIESCENT,
        evidence=tuple(f"{rank_s(those)}: {words}" for words, those in alike.items())[:_SHOWN],
    )
    began_ns = max(one.since_ns for one in left)
    return replace(found, confidence=Confidence.CERTAIN, began_ns=began_ns)
