"""Remote calls (``torch.distributed.rpc``): who waits for an answer, and whose handler is stuck.

Calls leave no record. A rank that does not come because it waits for an answer is held up by the
rank in which a handler runs, where there is one such rank alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.sentences import address, rank_s
from hangscope.diagnosis.stacks import innermost, is_library, where
from hangscope.trace.model import RankFacts, Stack

_RPC = re.compile(r"[\\/]torch[\\/](?:distributed[\\/]rpc|futures)[\\/]")
_RUNS_HANDLER = "_run_function"


@dataclass(frozen=True, slots=True)
class Handler:
    """``stack``: where the function stands that ``rank`` runs for another rank."""

    rank: int
    stack: Stack


def name_handlers(context: Context, causes: list[Cause]) -> None:
    """Where a rank is accused that waits for an answer: accuse the one that does not give it."""
    for cause in causes:
        if cause.verdict is not Verdict.MISSING_RANK or not cause.culprits:
            continue
        if not all(_waits_for_answer(context, rank) for rank in cause.culprits):
            continue
        busy = [h for rank in sorted(context.trace.ranks) if (h := _handler(context, rank))]
        if len(busy) != 1 or busy[0].rank in cause.culprits:
            continue
        (handler,) = busy
        callers, at = cause.culprits, where(innermost(handler.stack))
        cause.victims = (cause.victims | set(callers)) - {handler.rank}
        cause.culprits = (handler.rank,)
        cause.doubt("who has called whom is not recorded")
        waits = "waits" if len(callers) == 1 else "wait"
        cause.evidence.append(
            f"{rank_s(callers)} {waits} for an answer, and rank {handler.rank} runs a handler"
        )
        cause.stack = handler.stack
        cause.words = (
            f"Rank {handler.rank} does not answer a remote call: its handler is at {at}",
            f"{rank_s(callers)} {waits} for the answer instead of joining the others",
            f"look at {at} {address(context, handler.rank)}".rstrip()
            + ": the function that others call there does not return; give calls a timeout",
        )


def _waits_for_answer(context: Context, rank: int) -> bool:
    """Whether the rank's stack ends in a call of another rank's function."""
    host = context.hosts.get(rank)
    for frame in host.stack if host is not None else ():
        if _RPC.search(frame.filename):
            return True
        if not is_library(frame):
            return False
    return False


def _handler(context: Context, rank: int) -> Handler | None:
    """The function the rank runs for another one, unless that waits for an answer itself."""
    facts: RankFacts = context.trace.ranks[rank]
    for thread in facts.threads:
        names = [f.name if _RPC.search(f.filename) else "" for f in thread.stack]
        if thread.is_main or _RUNS_HANDLER not in names:
            continue
        inner = thread.stack[: names.index(_RUNS_HANDLER)]
        nested = any(_RPC.search(frame.filename) for frame in inner)
        if not nested and any(not is_library(frame) for frame in inner):
            return Handler(rank, inner)
    return None
