"""How two sides parted, as their lines of the program and the past of their ranks show."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Side
from hangscope.diagnosis.processes.stacks import (
    diverging_frame,
    is_library,
    stands_behind,
    user_frames,
    where,
)
from hangscope.diagnosis.records.agreement import numel
from hangscope.trace.dtypes import is_integer
from hangscope.trace.model import Stack

_WINDOW = 512
"""How many of a rank's newest operations are examined."""
_MOST_ASKED = 4
_EXITS = frozenset({"__exit__", "__aexit__"})


def parted(context: Context, few: Side, most: Side, own: int, theirs: int) -> str:
    """How a side left the others, as its lines show: the key of an advice, or "".

    ``own``: the group of what that side is in; ``theirs``: of what the others are in.
    """
    if in_finalizer(few) or in_finalizer(most):
        return "finalizer"
    if leaves_a_block(few, most):
        return "left a block"
    if few.stack != most.stack and been_there(context, most.ranks, own, few.stack):
        return "out of step"
    behind = stands_behind(few.stack, most.stack) and been_there(
        context, few.ranks, theirs, most.stack
    )
    return "guarded or early" if behind else ""


def one_call(few: Side, most: Side) -> str:
    """The program's line both are inside of, if they differ in installed packages only, or ""."""
    if few.stack == most.stack:
        return ""
    own, other = (tuple(f for f in s.full_stack if not is_library(f)) for s in (few, most))
    return where(own[0]) if own and own == other else ""


def another_call(sides: tuple[Side, ...], aspect: str) -> bool:
    """Whether calls of different lines met, whose tensors were never meant for each other.

    Sizes differ between calls; a dtype alone may differ because one line casts. But nobody casts
    between whole numbers and others for a collective.
    """
    known = [s for s in sides if s.stack and s.input_sizes is not None]
    if len(known) < 2 or len({s.stack for s in known}) < len(known):
        return False
    sizes = len({numel(s.input_sizes) for s in known}) > 1
    if aspect == "dtype" and len({_whole_numbers(s) for s in known} - {None}) > 1:
        return True
    return sizes and (aspect == "numel" or len({s.dtypes for s in known}) > 1)


def _whole_numbers(side: Side) -> bool | None:
    """Whether a side passes whole numbers; None if it passes several dtypes or unknown ones."""
    kinds = {is_integer(name) for name in side.dtypes or ()}
    return kinds.pop() if len(kinds) == 1 else None


def in_backward(side: Side) -> bool:
    """Whether autograd issued the operation: usually a gradient bucket of DDP."""
    return side.op == "all_reduce" and any(f.name == "backward" for f in side.full_stack)


def guarded(sides: tuple[Side, ...]) -> bool:
    """Whether one side is in a function that the other side is not in at all.

    Another line of the same function is the other branch of a choice; another function is something
    only one side does.
    """
    tops = [s.stack[0] for s in sides if s.stack]
    if len(tops) < 2:
        return False
    functions = [{f.name for f in s.stack} for s in sides if s.stack]
    return any(
        top.name not in other
        for i, top in enumerate(tops)
        for k, other in enumerate(functions)
        if i != k
    )


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
        rows = context.rows_in(rank, group=group)[-_WINDOW:]
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
