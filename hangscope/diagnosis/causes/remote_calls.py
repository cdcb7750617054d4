"""Remote calls (``torch.distributed.rpc``): who waits for an answer, and whose handler is stuck.

Calls leave no record. A rank that does not arrive because it waits for an answer is held up by the
rank running the handler, if there is exactly one such rank.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.processes.process_state import End, is_working
from hangscope.diagnosis.processes.stacks import innermost, is_library, where
from hangscope.diagnosis.wording.phrases import address, capital, rank_s
from hangscope.trace.model import RankFacts, Stack, Trace

_RPC = re.compile(r"[\\/]torch[\\/](?:distributed[\\/]rpc|futures)[\\/]")
_RUNS_HANDLER = "_run_function"
_SHUTDOWN = frozenset({"_all_gather", "_wait_all_workers", "shutdown", "_barrier"})
"""Functions of the rpc package in which a rank with nothing left to do waits for the others."""
_COMPUTING = 0.8
"""CPU seconds per second of a working process; polling agent threads alone use up to half of
one."""


@dataclass(frozen=True, slots=True)
class Handler:
    """``stack``: where the function is that ``rank`` runs for another rank."""

    rank: int
    stack: Stack


def accuse_handlers(context: Context, causes: list[Cause]) -> list[Cause]:
    """If an accused rank waits for an answer, accuse the rank that does not give it."""
    asked = any(_is_of_callers(context, cause) for cause in causes)
    busy = _handlers(context) if asked else []
    return [_answered_for(context, cause, busy) for cause in causes] if asked else causes


def _answered_for(context: Context, cause: Cause, busy: list[Handler]) -> Cause:
    """The cause; one of callers names the rank that owes them an answer, where that is known."""
    if not _is_of_callers(context, cause):
        return cause
    if len(busy) != 1 or busy[0].rank in cause.culprits:
        return cause.doubted("which rank owes the answer for which these wait is not recorded")
    return _unanswered_by(context, cause, busy[0])


def _is_of_callers(context: Context, cause: Cause) -> bool:
    """Whether all of the accused did not arrive because they wait for an answer."""
    named = cause.verdict is Verdict.MISSING_RANK and bool(cause.culprits)
    return named and all(_waits_for_answer(context, rank) for rank in cause.culprits)


def _unanswered_by(context: Context, cause: Cause, handler: Handler) -> Cause:
    """The cause with the rank that does not answer as culprit and the callers as victims."""
    callers, at = cause.culprits, where(innermost(handler.stack))
    waits = "waits" if len(callers) == 1 else "wait"
    words = Words(
        f"Rank {handler.rank} does not answer a remote call: its handler is at {at}",
        f"{rank_s(callers)} {waits} for the answer instead of joining the others",
        f"look at {at} {address(context, handler.rank)}".rstrip()
        + ": the function that others call there does not return; set a timeout on calls",
    )
    named = cause.accusing((handler.rank,), cause.confidence).with_evidence(
        f"{rank_s(callers)} {waits} for an answer, and rank {handler.rank} runs a handler"
    )
    doubted = named.doubted("who has called whom is not recorded")
    return replace(doubted, stack=handler.stack, words=words)


def unanswered_calls(context: Context) -> Finding | None:
    """What a job waits for whose ranks are in remote calls and in nothing that is recorded.

    Calls have no number and no time on record, and a rank that makes one after another looks the
    same in every sample. So a rank is only named after looks for as long as a collective may wait;
    for an ended job, only the last sample is reported.
    """
    trace = context.trace
    if not trace.ranks or (len(trace.records) and not _is_silent(trace)):
        return None
    if any(h.end not in (End.ALIVE, End.TORN_DOWN) for h in context.processes.values()):
        return None
    waiting = [r for r in sorted(trace.ranks) if _waits_for_answer(context, r)]
    stopped = [r for r, process in sorted(context.processes.items()) if process.state == "stopped"]
    if waiting and len(stopped) == 1:
        return _stopped(context, stopped[0], tuple(r for r in waiting if r != stopped[0]))
    if trace.live and (
        trace.looks < 2 or any(is_working(f, _COMPUTING) for f in trace.ranks.values())
    ):
        return None
    leaving = [r for r in waiting if any(f.name in _SHUTDOWN for f in _main(context, r))]
    callers = tuple(r for r in waiting if r not in leaving)
    busy = _handlers(context)
    if not callers and not busy:
        return _not_shut_down(context) if trace.live else None
    found = [f"rank {h.rank} runs a handler at {_called(h)}" for h in busy]
    who = f"{rank_s(callers).capitalize()} {'waits' if len(callers) == 1 else 'wait'} for an answer"
    named = busy[0].rank if trace.live and len(busy) == 1 else None
    at = where(innermost(busy[0].stack)) if busy else ""
    evidence = [f"rank {r}: {where(innermost(_main(context, r)))}" for r in callers[:8]] + found[:8]
    if leaving:
        evidence.append(f"{rank_s(leaving)} in rpc.shutdown, which waits for all calls to finish")
    summary = "; ".join([*([who + " to a remote call"] if callers else []), *found[:4]])
    return Finding(
        Verdict.INCONCLUSIVE if named is None else Verdict.MISSING_RANK,
        () if named is None else (named,),
        tuple(r for r in sorted(trace.ranks) if r != named),
        Confidence.LIKELY,
        capital(summary),
        "a remote call returns when the function that it runs elsewhere does",
        f"look at {at}: the function that others call there does not return; set a timeout on calls"
        if len(busy) == 1
        else "look at what each handler does, and set a timeout on remote calls",
        "D9",
        evidence=tuple(evidence),
        unknowns=("who has called whom, and since when, is not recorded",),
        unchanged_s=trace.timeout_s,
    )


def _is_silent(trace: Trace) -> bool:
    """Whether a running job has issued and finished nothing for as long as a collective may wait.

    The records of an ended job show its final state anyway.
    """
    newest_ns = max(int(trace.records[time].max()) for time in ("created_ns", "completed_ns"))
    return trace.live and trace.observed_ns - newest_ns >= trace.timeout_s * 1e9


def _not_shut_down(context: Context) -> Finding | None:
    """Ranks that have not reached ``rpc.shutdown``, where the others wait for all."""
    ranks = sorted(context.trace.ranks)
    leaving = tuple(r for r in ranks if _in_shutdown(_main(context, r)))
    absent = tuple(r for r in ranks if r not in leaving)
    if not leaving or not absent or context.trace.missing_ranks:
        return None
    few = len(absent) < len(leaving)
    process = context.processes[absent[0]]
    at = f"{where(innermost(process.stack))} {address(context, absent[0])}".strip()
    return Finding(
        Verdict.MISSING_RANK,
        absent,
        leaving,
        Confidence.LIKELY if few else Confidence.AMBIGUOUS,
        f"{capital(rank_s(absent))} never came to rpc.shutdown, where {rank_s(leaving)} wait"
        + ("s" if len(leaving) == 1 else ""),
        "rpc.shutdown returns when all ranks have called it",
        f"look at {at}: every rank has to call rpc.shutdown; pass graceful=False on a rank that "
        "need not wait for the others",
        "D9, D19",
        evidence=tuple(f"rank {r}: {where(innermost(_main(context, r)))}" for r in absent[:8]),
        unchanged_s=context.trace.timeout_s,
    )


def _stopped(context: Context, rank: int, callers: tuple[int, ...]) -> Finding:
    """A stopped rank answers nobody."""
    waits = f"{rank_s(callers)} {'waits' if len(callers) == 1 else 'wait'} for an answer"
    return Finding(
        Verdict.MISSING_RANK,
        (rank,),
        tuple(r for r in sorted(context.trace.ranks) if r != rank),
        Confidence.LIKELY,
        f"Rank {rank} is stopped" + (f" while {waits} to a remote call" if callers else ""),
        "a stopped process answers no remote calls",
        f"resume the stopped process (kill -CONT) {address(context, rank)}".rstrip(),
        "D19",
        evidence=(f"rank {rank}: stopped", *((waits,) if callers else ())),
        unknowns=("who has called whom, and since when, is not recorded",),
        unchanged_s=context.trace.timeout_s,
    )


def _called(handler: Handler) -> str:
    """Where a handler is, and which function was called remotely, if that is a different one."""
    frame, outermost = innermost(handler.stack), handler.stack[-1]
    within = f", within {outermost.name}" if frame is not None and frame != outermost else ""
    return where(frame) + within


def _main(context: Context, rank: int) -> Stack:
    process = context.processes.get(rank)
    return process.stack if process is not None else ()


def _waits_for_answer(context: Context, rank: int) -> bool:
    """Whether the rank's stack ends in a call of another rank's function."""
    for frame in _main(context, rank):
        if _RPC.search(frame.filename):
            return True
        if not is_library(frame):
            return False
    return False


def _in_shutdown(stack: Stack) -> bool:
    """Whether it is in ``rpc.shutdown``, not in the similar exchange of ``init_rpc``."""
    return any(frame.name == "shutdown" and _RPC.search(frame.filename) for frame in stack)


def _handlers(context: Context) -> list[Handler]:
    """The functions that ranks run for others."""
    return [h for rank in sorted(context.trace.ranks) if (h := _handler(context, rank))]


def _handler(context: Context, rank: int) -> Handler | None:
    """The function the rank runs for another rank, unless it waits for an answer itself."""
    facts: RankFacts = context.trace.ranks[rank]
    for thread in facts.threads:
        names = [f.name if _RPC.search(f.filename) else "" for f in thread.stack]
        if thread.is_main or _RUNS_HANDLER not in names:
            continue
        inner = thread.stack[: names.index(_RUNS_HANDLER)]
        # The package itself calls methods of remote objects; a wait for the answer to the handler's
        # own call is below its line.
        below = itertools.takewhile(is_library, inner)
        nested = any(_RPC.search(frame.filename) for frame in below)
        if not nested and any(not is_library(frame) for frame in inner):
            return Handler(rank, inner)
        if not inner:  # what is called has no Python code of its own: it shows no frame
            return Handler(rank, thread.stack[:1])
    return None
