"""Ranks that are doing something may yet arrive: for a while, slow and stuck look alike."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.wording.blocked import blocked_in
from hangscope.diagnosis.wording.phrases import is_are, rank_s
from hangscope.trace.facts import RUNNABLE

_OF_THE_ABSENT = (Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED)


def doubt_busy_ranks(context: Context, cause: Cause) -> Cause:
    """Doubt that ranks are stuck that others wait for while they are seen to make progress."""
    if not context.trace.live or cause.verdict not in _OF_THE_ABSENT or not cause.culprits:
        return cause
    if not all(_makes_progress(context, rank) for rank in cause.culprits):
        return cause
    limit = f"HANGSCOPE_TIMEOUT ({lasting(context.trace.timeout_s)})"
    who = f"{rank_s(cause.culprits)} {is_are(cause.culprits)} at work"
    return cause.doubted(f"whether the job hangs: {who}, and may only take longer than {limit}")


def _makes_progress(context: Context, rank: int) -> bool:
    """Whether the process was seen to run, not just to poll for what it waits for."""
    process, facts = context.processes.get(rank), context.trace.ranks.get(rank)
    if process is None or facts is None or process.end is not End.ALIVE:
        return False
    if process.wait is not None and process.wait.kind == RUNNABLE:
        return True  # it runs whenever it gets a CPU
    if process.cannot_run:
        return False
    if process.state == "busy":
        return True
    return not blocked_in(process) and (bool(facts.stack_moved) or process.wakes)
