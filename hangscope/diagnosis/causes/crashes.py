"""Turns failures that the wait-for graph does not show into causes."""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.exit_status_only import known_by_status, may_have_given_up
from hangscope.diagnosis.exits.primary_failures import (
    aborted_alone,
    had_destroyed_groups,
    primary_crashes,
    same_failure,
)
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.process_state import End, ProcessState, is_unseen


def crash_causes(context: Context, causes: list[Cause]) -> list[Cause]:
    """Primary failures not covered by a graph cause: all other ranks were torn down."""
    waits = context.waits
    crashed = [r for r, h in context.processes.items() if h.end is End.CRASHED]
    waits_on = {r: {t for place in waits.of(r) for t in place.targets} for r in crashed}
    found = primary_crashes(context.processes, waits_on)
    blamed = {r for c in causes for r in c.culprits}
    rest = [
        h
        for h in found
        if h.rank not in blamed and not had_destroyed_groups(context.trace.ranks[h.rank])
    ]
    if any(_left_its_groups(context, c) for c in causes):
        rest = [h for h in rest if not _only_a_status(context, h.rank)]
    gave_up = may_have_given_up(context.trace)
    rest = [h for h in rest if h.rank not in gave_up]
    if not rest:
        return []
    accused = {h.rank for h in rest}
    shared = {r for c in context.trace.claims if c.kind == "shared_device" for r in c.accused}
    ambiguous = not shared.isdisjoint(accused)
    if ambiguous:  # the device chosen by either rank is the wrong one
        accused |= shared & context.processes.keys()
    bare = len(rest) > 1 and all(h.failure.by_status for h in rest)
    # Nothing distinguishes the first failure from its echo.
    ambiguous |= bare or not same_failure(rest)
    cause = Cause(
        Verdict.RANK_CRASHED,
        tuple(sorted(accused)),
        confidence=Confidence.AMBIGUOUS if ambiguous else Confidence.CERTAIN,
        began_ns=min((h.end_ns for h in rest if h.end_ns), default=0),
        victims=frozenset(
            rank
            for rank, process in context.processes.items()
            if rank not in accused
            and (process.end in (End.TORN_DOWN, End.CRASHED) or process.secondary)
        ),
    )
    return [cause.doubted(*_doubts(context, rest))]


def _doubts(context: Context, rest: list[ProcessState]) -> Iterator[str]:
    """What is unknown about how these ended."""
    if all(is_unseen(context.trace.ranks[h.rank]) for h in rest):
        yield "nobody saw how the accused ended"
    alone = aborted_alone(context.trace) if context.trace.only_logs else None
    if all(h.rank == alone for h in rest):
        yield "of what the accused aborted itself is not told"
    if all(_ended_without_a_word(context, h.rank) for h in rest):
        yield "others gave up waiting for somebody, and of what the accused failed is not told"


def _left_its_groups(context: Context, cause: Cause) -> bool:
    """Whether the accused had destroyed their groups, which breaks everybody's connections."""
    ranks = context.trace.ranks
    left = all(r in ranks and ranks[r].finalized for r in cause.culprits)
    return bool(cause.culprits) and cause.verdict is Verdict.MISSING_RANK and left


def _ended_without_a_word(context: Context, rank: int) -> bool:
    """Whether a log gives only the rank's status while others had waited until a timeout."""
    trace = context.trace
    waited = any(c.kind == "timeout" and c.reporter not in (None, rank) for c in trace.claims)
    return waited and known_by_status(trace, rank)


def _only_a_status(context: Context, rank: int) -> bool:
    """Whether nothing shows why a rank failed."""
    exit_ = context.trace.ranks[rank].exit
    return rank in context.unrecorded and exit_ is not None and exit_.kind == "code"
