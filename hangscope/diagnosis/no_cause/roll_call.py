"""A job that stands still in something that leaves no record: who stands where?

Graph replays and communicators of other libraries issue nothing that a recorder sees. If nothing
recorded is unfinished, nothing moves, and most ranks stand at one line while a few stand elsewhere,
most wait for the few.
"""

from __future__ import annotations

from collections import defaultdict

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.processes.process_state import ProcessState, is_working
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.records.kinds import is_on_host
from hangscope.diagnosis.wording.phrases import capital, rank_s, verb
from hangscope.diagnosis.wording.rank_advice import missing
from hangscope.trace.units import SECOND_NS

_FEWEST = 2
"""How many must stand at one line to be "most"."""


def by_roll_call(context: Context) -> Finding | None:
    """The few ranks that stand elsewhere in a job that has stood still for `Trace.timeout_s`."""
    stood_s = _stood_s(context)
    if stood_s < context.trace.timeout_s or any_moves(context):
        return None
    lines: dict[str, list[int]] = defaultdict(list)
    for rank, process in sorted(context.processes.items()):
        if process.ended_by_itself or context.trace.ranks[rank].leaving is not None:
            return None
        lines[where(innermost(process.stack)) if _tells(process) else ""].append(rank)
    most = max(lines, key=lambda line: len(lines[line]), default="")
    here = lines.pop(most, [])
    few = tuple(sorted(rank for ranks in lines.values() for rank in ranks))
    if not most or len(here) < _FEWEST or not 0 < len(few) < len(here):
        return None
    process = context.processes[few[0]]
    line = where(innermost(process.stack))
    advice = missing(process)
    return Finding(
        Verdict.MISSING_RANK,
        few,
        tuple(here),
        Confidence.LIKELY if len(lines) == 1 and line else Confidence.AMBIGUOUS,
        f"{capital(rank_s(few))} {verb(few, 'is')} at {line or 'no known line'} while "
        f"{rank_s(here)} stand at {most}, and nothing is issued any more",
        "what most of them wait for leaves no record, as the replay of a CUDA graph or another "
        "library's communicator; where the others stand shows who has not come to it",
        advice.fix,
        advice.playbook,
        evidence=(f"nothing was issued for {lasting(stood_s)}",),
        unknowns=("what the ranks wait for is not on record",),
        unchanged_s=context.trace.timeout_s if context.trace.live else 0.0,
    )


def any_moves(context: Context, *, polls: bool = False) -> bool:
    """Whether any rank was seen to make progress.

    Waiting for a device keeps a processor busy, and so may (``polls``) other waiting: there only a
    stack that moves counts, if two looks compared it.
    """
    on_device = polls or not all(map(is_on_host, context.trace.signatures))
    return any(
        bool(facts.stack_moved)
        if on_device and facts.stack_moved is not None
        else is_working(facts)
        for facts in context.trace.ranks.values()
    )


def _tells(process: ProcessState) -> bool:
    """Whether its stack shows where it waits: one that cannot run stands nowhere of its own."""
    return bool(process.stack) and not process.cannot_run


def _stood_s(context: Context) -> float:
    """For how long (s) every rank has been seen to live since anything was issued or finished."""
    ranks = context.trace.ranks
    if not context.newest_ns or context.trace.missing_ranks or context.waits.places:
        return 0.0
    lived_ns = min((max(f.observed_ns, f.heartbeat_ns) for f in ranks.values()), default=0)
    return (lived_ns - context.newest_ns) / SECOND_NS
