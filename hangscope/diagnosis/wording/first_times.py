"""Which sides, between which nothing decides, stand where they had never been before.

A first evaluation or checkpoint is new to everybody, so this is no verdict: it tells the reader
where to look first.
"""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence
from hangscope.diagnosis.processes.stacks import innermost, user_frames, where
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.model import NONE, Frame, Stack

_MOST_ACCUSED = 8
_OFTEN = 2
"""Whoever has passed its line so often is where it usually is."""


def first_times(context: Context, cause: Cause) -> list[str]:
    """The line of evidence, if some of the accused are at a new line and all others at a usual one.

    Nothing is said of ranks whose first records or stacks are lost.
    """
    accused = cause.culprits
    undecided = cause.confidence is Confidence.AMBIGUOUS
    if (
        not undecided
        or not 1 < len(accused) <= _MOST_ACCUSED
        or context.hidden.intersection(accused)
    ):
        return []
    rows = {rank: _row(context, cause, rank) for rank in accused}
    records = context.trace.records
    if any(row == NONE or records["stack"][row] == NONE for row in rows.values()):
        return []
    passed = {rank: _passed(context, rank, row) for rank, row in rows.items()}
    new = [rank for rank in accused if not passed[rank]]
    usual = [rank for rank in accused if passed[rank] >= _OFTEN]
    if not new or not usual or len(new) + len(usual) < len(accused):
        return []
    frame = _new_frame(context, new[0], rows[new[0]])
    if frame is None:
        return []
    times = min(passed[rank] for rank in usual)
    return [
        f"{rank_s(new)} had never come to {where(frame)} before; {rank_s(usual)} had come {times} "
        f"times or more to {where(innermost(_stack(context, rows[usual[0]])))}"
    ]


def _row(context: Context, cause: Cause, rank: int) -> int:
    """What the rank issued where it differs from others, or what it waits in."""
    if cause.mismatch is not None:
        return context.row_of(cause.mismatch.group, rank, cause.mismatch.seq)
    low, high = context.bounds.get(rank, (0, 0))
    open_ = np.flatnonzero(context.front.unfinished[low:high])
    return low + int(open_[0]) if len(open_) else NONE


def _stack(context: Context, row: int) -> Stack:
    return context.trace.stacks[int(context.trace.records["stack"][row])]


def _passed(context: Context, rank: int, row: int) -> int:
    """How often the rank had issued anything in this group from the same lines of the program."""
    records = context.trace.records
    past = records[context.bounds[rank][0] : row]
    past = past[(past["group"] == records["group"][row]) & (past["stack"] != NONE)]
    own = user_frames(_stack(context, row))
    found, counts = np.unique(past["stack"], return_counts=True)
    stacks = context.trace.stacks
    return sum(
        int(count)
        for stack, count in zip(found.tolist(), counts, strict=True)
        if user_frames(stacks[stack]) == own
    )


def _new_frame(context: Context, rank: int, row: int) -> Frame | None:
    """The outermost of the user's frames that is in no earlier stack of the rank, if any is."""
    trace = context.trace
    past = set(trace.records["stack"][context.bounds[rank][0] : row].tolist()) - {NONE}
    seen = {(f.filename, f.line) for stack in past for f in trace.stacks[stack]}
    new = [f for f in user_frames(_stack(context, row)) if (f.filename, f.line) not in seen]
    return new[-1] if new else None
