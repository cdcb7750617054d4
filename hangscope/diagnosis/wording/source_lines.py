"""The lines of two sides: where they diverge, and whether the other side has been there."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Side
from hangscope.diagnosis.processes.stacks import diverging_frame, user_frames, where
from hangscope.trace.model import Stack

_WINDOW = 512
"""How many of a rank's newest operations are examined."""
_MOST_ASKED = 4
_EXITS = frozenset({"__exit__", "__aexit__"})


def diverging_lines(one: Side, other: Side) -> list[str]:
    """For each side the outermost line that the other one does not share.

    The collective may be called by a helper that both use: then the line that calls the helper
    differs. For threads that began in different functions all lines differ: those of the calls say
    more.
    """
    outermost = {
        (side.stack[-1].filename, side.stack[-1].name) for side in (one, other) if side.stack
    }
    lines = []
    for side, rest in ((one, other), (other, one)):
        if side.stack:
            at = diverging_frame(side.stack, [rest.stack]) if len(outermost) == 1 else 0
            lines.append(where(side.stack[at or 0]))
    return lines


def in_finalizer(side: Side) -> bool:
    """Whether a side is in a finalizer, which Python runs whenever it discards an object."""
    return any(frame.name == "__del__" for frame in side.stack)


def stands_behind(side: Side, other: Side) -> bool:
    """Whether a side is further down in the function in which both diverge."""
    at, there = (
        diverging_frame(side.stack, [other.stack]),
        diverging_frame(other.stack, [side.stack]),
    )
    if at is None or there is None:
        return False
    frame, other_frame = side.stack[at], other.stack[there]
    return frame[:2] == other_frame[:2] and frame.line > other_frame.line


def been_there(
    context: Context,
    ranks: Collection[int],
    group: int,
    stack: Stack,
    *,
    newest: bool = False,
) -> bool:
    """Whether one of ``ranks`` has issued an operation of the group from this line before.

    ``newest``: or stands there with its newest one, or with a thread that is about to issue it.
    """
    records, facts = context.trace.records, context.trace.ranks
    for rank in sorted(ranks)[:_MOST_ASKED]:
        low, high = context.bounds.get(rank, (0, 0))
        rows = np.flatnonzero(records["group"][low:high] == group)[-_WINDOW:] + low
        rows = rows if newest else rows[:-1]
        threads = facts[rank].threads if newest and rank in facts else ()
        if any(user_frames(thread.stack)[-1:] == stack[-1:] for thread in threads if thread.stack):
            return True
        for known in np.unique(records["stack"][rows]).tolist():
            if known >= 0 and user_frames(context.trace.stacks[known]) == stack:
                return True
    return False


def leaves_a_block(side: Side, other: Side) -> bool:
    """Whether a side is at the end of a ``with`` block that the other one is still inside."""
    names = [frame.name for frame in side.stack]
    inside = {frame.name for frame in other.stack}
    left = [outer for name, outer in pairwise(names) if name in _EXITS]
    return bool(left) and inside.issuperset(left) and not inside & _EXITS
