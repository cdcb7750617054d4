"""What is known of one rank may be of different moments, and then contradicts itself.

A dump is written when a watchdog gives up, stacks are taken when somebody looks, and a log without
times says that a rank failed, but not whether before or after.
"""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.process_state import in_communication
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace import formats
from hangscope.trace.model import RankFacts, Stack

_FROM_OUTSIDE = ("py-spy", "signal", "log")
"""Sources of stacks that are not of the moment of a record."""


def doubt_by_stacks(context: Context, cause: Cause) -> Cause:
    """Doubt that a rank never came where a stack taken from outside shows it inside a collective.

    Its record has nothing unfinished: either it came after the record was written, or it waits in
    something that the record does not hold.
    """
    return cause.doubted(*_waits_by_stack(context, cause))


def _waits_by_stack(context: Context, cause: Cause) -> list[str]:
    if cause.verdict is not Verdict.MISSING_RANK:
        return []
    found = []
    for rank in cause.culprits[:8]:
        stack = _outside_stack(context.trace.ranks.get(rank))
        if in_communication(stack) and rank in context.bounds and not context.waits.out(rank):
            at = where(innermost(stack))
            found.append(
                f"the record of rank {rank} has nothing unfinished, and its stack shows it waiting "
                f"for other ranks at {at}: one of the two is older, or the record lacks this wait"
            )
    return found


def _outside_stack(facts: RankFacts | None) -> Stack:
    if facts is None or facts.heartbeat_ns:
        return ()
    main = [t for t in facts.threads if t.is_main and t.source in _FROM_OUTSIDE]
    return max(main, key=lambda t: t.sampled_ns).stack if main else ()


def doubt_failures_of_waiting(context: Context, causes: list[Cause]) -> list[Cause]:
    """Accuse those as well for whom a failed rank waited when it wrote its dump.

    The failure is undated. The rank lived to write the dump, so the failure came later: the job may
    have stood still before because of the others, or it still moved then.
    """
    named = {rank for cause in causes for rank in cause.culprits}
    return [_with_awaited(context, cause, named) for cause in causes]


def _with_awaited(context: Context, cause: Cause, named: set[int]) -> Cause:
    if cause.verdict is not Verdict.RANK_CRASHED or len(cause.culprits) != 1:
        return cause
    (failed,) = cause.culprits
    facts = context.trace.ranks.get(failed)
    if facts is None or not facts.failed_undated or not _dumped(context, failed):
        return cause
    places = [p for p in context.waits.places if failed in p.waiters and p.absent]
    awaited = sorted({r for p in places for r in p.absent} - named)
    if not awaited or any(context.processes[r].gone for r in awaited if r in context.processes):
        return cause
    error = facts.exception
    how = shortened(f"{error.type_name}: {error.message}") if error is not None else "an error"
    summary = (
        f"Rank {failed} failed ({how}), but only after it had written a dump in which it waits for "
        f"{rank_s(awaited)}"
    )
    doubt = f"whether the job stood still because of {rank_s(awaited)} before that"
    both = tuple(sorted({failed, *awaited}))
    accused = cause.accusing(both, Confidence.AMBIGUOUS).with_unknown(doubt)
    return replace(accused, words=Words(summary=summary))


def _dumped(context: Context, rank: int) -> bool:
    """Whether the rank wrote a dump itself: rings stay, however a rank ends."""
    facts = context.trace.ranks[rank]
    return not facts.heartbeat_ns and any(
        source.rank == rank and source.format in formats.DUMPS for source in context.trace.sources
    )
