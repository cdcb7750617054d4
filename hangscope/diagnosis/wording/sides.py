"""What each side did at the place where the job diverged, and the lines that brought them there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.exits.dead_threads import dead_thread, died_of
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Side, Verdict
from hangscope.diagnosis.processes.stacks import (
    base,
    diverging_frame,
    in_framework,
    is_library,
    user_frames,
)
from hangscope.diagnosis.wording.instead import instead
from hangscope.trace.model import NONE, Flag, Stack

_MOST_ALONE = 8
"""Ranks that a report shows individually."""


def sides_of(context: Context, cause: Cause, place: Place | None) -> tuple[Side, ...]:
    """What each side did where the job diverged, and where it differs from the others.

    Parameters
    ----------
    place:
        The one in the summary.
    """
    paired = cause.verdict is Verdict.P2P_UNMATCHED and bool(cause.sides)
    if cause.mismatch is not None:
        seq = cause.mismatch.seq
        sides = [_side_of_row(context, p.ranks, p.shown, seq, "") for p in cause.mismatch.parts]
    elif cause.verdict is Verdict.DEADLOCK_CYCLE or paired:
        sides = _across_places(context, cause)
    elif place is None:
        sides = _absent_each(context, tuple(cause.culprits[:_MOST_ALONE]), NONE)
    elif place.phase:
        inside = cause.sides or [tuple(sorted(place.waiters))]
        sides = [_side_in_phase(context, ranks, place) for ranks in inside if ranks]
        outside = tuple(r for r in sorted(cause.culprits) if r not in place.waiters)
        sides += _absent_each(context, outside, NONE)
    else:
        sides = _around(context, cause, place)
    if cause.stack:
        shown = user_frames(cause.stack)
        sides = [s for s in sides if s.ranks != cause.culprits]
        doing = f"in {shown[0].name}"
        sides.append(Side(cause.culprits, stack=shown, full_stack=cause.stack, activity=doing))
    return _with_divergence(_with_framework_frames(sides))


def _across_places(context: Context, cause: Cause) -> list[Side]:
    """The sides of a cause, each where it waits: in a cycle, or for its halves of exchanges."""
    sides = []
    here = context.waits.at(cause.places)
    for ranks in cause.sides:
        own = next((p for p in here if ranks[0] in p.waiters), None)
        if own is not None and own.phase:
            sides.append(_side_in_phase(context, ranks, own))
        elif own is not None:
            row, op = _own_row(context, ranks[0], own), context.place_op(own)
            sides.append(_side_of_row(context, ranks, row, own.seq, op))
        elif cause.crossed:
            sides.append(_side_of_absent(context, ranks, _group_of(context, cause)))
    return sides


def _around(context: Context, cause: Cause, place: Place) -> list[Side]:
    """The ranks that wait at a place, and those to blame."""
    sides = []
    if place.waiters:
        waiters, op = tuple(sorted(place.waiters)), context.place_op(place)
        sides.append(_side_of_row(context, waiters, place.row, place.seq, op))
    blamed = tuple(sorted(cause.culprits)) if not cause.issued_extra else cause.sides[0]
    blamed = tuple(r for r in blamed if r not in place.waiters)
    if cause.verdict is not Verdict.STUCK_COLLECTIVE:
        return sides + _absent_each(context, blamed, place.group)
    # A culprit may wait itself, in the same operation of another group.
    elsewhere = context.waits.at(cause.places)
    for rank in blamed[:_MOST_ALONE]:
        if rank in place.not_begun:
            row, op = place.not_begun[rank], context.place_op(place)
            sides.append(_side_of_row(context, (rank,), row, place.seq, op))
            continue
        own = next((p for p in elsewhere if p is not place and rank in p.waiters), None)
        sides.append(
            _side_of_row(context, (rank,), own.row, own.seq, context.place_op(own))
            if own is not None
            else _side_of_absent(context, (rank,), place.group)
        )
    return sides + _absent_together(context, blamed, place.group)


def _absent_each(context: Context, ranks: tuple[int, ...], group: int) -> list[Side]:
    """One side for each rank that is elsewhere, as far as a report can show them individually."""
    alone = [_side_of_absent(context, (r,), group) for r in ranks[:_MOST_ALONE]]
    return alone + _absent_together(context, ranks, group)


def _absent_together(context: Context, ranks: tuple[int, ...], group: int) -> list[Side]:
    """One side for all ranks that are too many to show individually."""
    others = ranks[_MOST_ALONE:]
    return [_side_of_absent(context, others, group)] if others else []


def _with_framework_frames(sides: list[Side]) -> list[Side]:
    """If all sides came from one line of the user's (a trainer's), add the framework frames where
    they diverge."""
    shown = [side for side in sides if side.stack]
    if len({side.stack for side in shown}) != 1 or len({s.full_stack for s in shown}) < 2:
        return sides
    reversed_stacks = [side.full_stack[::-1] for side in shown]
    fork = 0
    while all(len(s) > fork and s[fork] == reversed_stacks[0][fork] for s in reversed_stacks):
        fork += 1
    if not any(len(s) > fork and in_framework(s[fork]) for s in reversed_stacks):
        return sides
    return [
        replace(side, stack=_down_to_fork(side.full_stack, fork)) if side.stack else side
        for side in sides
    ]


def _down_to_fork(stack: Stack, fork: int) -> Stack:
    """The user's frames and those of frameworks around the ``fork``-th frame from outside."""
    outside_in = stack[::-1]
    kept = [frame for frame in outside_in[: fork - 1] if not is_library(frame)]
    kept += outside_in[max(fork - 1, 0) : fork + 2]
    return tuple(reversed([f for f in kept if not is_library(f) or in_framework(f)]))


def _group_of(context: Context, cause: Cause) -> int:
    """The group of a cause's first place, or -1."""
    return context.waits.places[cause.places[0]].group if cause.places else NONE


def _own_row(context: Context, rank: int, place: Place) -> int:
    """The row in which a rank waits at a place: others may have got there by other lines."""
    front = context.front
    first, last = np.searchsorted(front.rank, (rank, rank + 1))
    here = (front.group[first:last] == place.group) & (front.pending[first:last] == place.seq)
    rows = front.pending_row[first:last][here]
    return int(rows[0]) if not place.p2p and len(rows) and rows[0] >= 0 else place.row


def _side_of_row(context: Context, ranks: tuple[int, ...], row: int, seq: int, op: str) -> Side:
    signature = context.signature(row)
    stack = context.stack(row)
    record = context.trace.records[row] if row >= 0 else None
    whose = context.first_still_running(ranks)
    age = context.shown_age_s(whose, int(record["created_ns"])) if record is not None else None
    root = int(record["root"]) if record is not None and record["root"] >= 0 else None
    pair = record is not None and bool(int(record["flags"]) & int(Flag.P2P))
    peer = int(record["peer"]) if record is not None and record["peer"] >= 0 else None
    return Side(
        ranks=ranks,
        op=signature.op if signature is not None else op,
        seq=seq,
        input_sizes=signature.input_sizes if signature else None,
        output_sizes=signature.output_sizes if signature else None,
        dtypes=(signature.input_dtypes or signature.output_dtypes) if signature else None,
        reduce_op=signature.reduce_op if signature else None,
        root=None if pair else root,
        tag=root if pair else None,
        peer=peer,
        stack=user_frames(stack),
        full_stack=stack,
        waiting_s=age,
    )


def _side_in_phase(context: Context, ranks: tuple[int, ...], place: Place) -> Side:
    """Ranks that wait in a call which is no operation: where their processes are."""
    process, facts = context.processes.get(ranks[0]), context.trace.ranks.get(ranks[0])
    stack = process.stack if process is not None else ()
    name = place.phase.partition(" ")[0]
    since = [p.since_ns for p in facts.phases if p.name == name] if facts else []
    if is_lock(place):
        since = [place.began_ns]
    waited = context.shown_age_s(ranks[0], since[-1]) if since else None
    return Side(ranks, place.phase, stack=user_frames(stack), full_stack=stack, waiting_s=waited)


def _side_of_absent(context: Context, ranks: tuple[int, ...], group: int) -> Side:
    rank = ranks[0]
    process = context.processes.get(rank)
    facts = context.trace.ranks.get(rank)
    last_seq, row = context.last_in_group(rank, group) if group >= 0 else (0, NONE)
    signature = context.signature(row)
    stack = context.stack_in(rank, group)
    exception = facts.exception if facts is not None else None
    dead = dead_thread(context, rank, group)
    gone = process is None or process.gone
    # What a thread raised long ago is not where a process was that was killed.
    if exception is not None and exception.stack:
        stack = exception.stack if dead or (gone and exception.is_main_thread) else stack
    since = int(context.trace.records["created_ns"][row]) if row >= 0 else 0
    return Side(
        ranks=ranks,
        op=None,
        seq=None,
        stack=user_frames(stack),
        full_stack=stack,
        activity=died_of(dead) if dead is not None else instead(context, rank, stack).words,
        last_op=signature.op if signature is not None else None,
        last_seq=last_seq or None,
        last_age_s=context.shown_age_s(rank, since) if since else None,
    )


def _with_divergence(sides: list[Side]) -> tuple[Side, ...]:
    """The sides, each with the frame at which it differs from all others.

    None if the stacks begin in different functions: they are of different threads, or lack outer
    frames (a traceback begins where the exception was caught).
    """
    stacks = dict.fromkeys(side.stack for side in sides)  # many ranks are at one line
    if len({(base(s[-1].filename), s[-1].name) for s in stacks if s}) > 1:
        return tuple(sides)
    return tuple(
        replace(
            side, differs_at=diverging_frame(side.stack, [s for s in stacks if s != side.stack])
        )
        for side in sides
    )
