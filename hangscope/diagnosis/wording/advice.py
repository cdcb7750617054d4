"""What to do about a cause: which playbook advice applies, and where to look."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence, Side, Verdict
from hangscope.diagnosis.observability import counts_on
from hangscope.diagnosis.pattern.thread_races import race_of_threads
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.stacks import innermost, user_frames, where
from hangscope.diagnosis.records.agreement import numel
from hangscope.diagnosis.records.mismatch import Mismatch
from hangscope.diagnosis.wording.evidence import handled_alone
from hangscope.diagnosis.wording.logs import undecided
from hangscope.diagnosis.wording.parting import (
    another_call,
    been_there,
    diverging_lines,
    guarded,
    in_backward,
    leaves_a_block,
    one_call,
    parted,
)
from hangscope.diagnosis.wording.phrases import rank_s, title_of
from hangscope.diagnosis.wording.playbook import Advice, say
from hangscope.diagnosis.wording.rank_advice import for_rank, missing, with_dead_thread
from hangscope.diagnosis.wording.summaries import Crossing, crossing
from hangscope.trace.job_selection.duplicate_ranks import duplicate_ranks

_COMMUNICATION_HOOK = re.compile(r"distributed[/\\]algorithms[/\\]ddp_comm_hooks[/\\]")
_AT_JOINS_END = re.compile(r"distributed[/\\]algorithms[/\\]join\.py:__exit__$")
_LAST = 16
"""This many of a rank's newest operations show whether its sizes vary."""


def advice(context: Context, cause: Cause, place: Place | None, sides: tuple[Side, ...]) -> Advice:
    """The fix for one cause; ``place`` is the one in its summary."""
    if cause.words.fix:
        return Advice(cause.words.fix, "D19")
    handled = handled_alone(context, cause)
    if handled is not None:
        key = "data ended" if handled.is_end_of_data else "handling"
        return say(key, rank=rank_s((handled.rank,)), error=handled.words)
    if cause.mismatch is not None:
        return _mismatch(context, cause, cause.mismatch, sides)
    if cause.crossed:
        return _crossed(cause, sides)
    if cause.conflict:
        return _contradiction(cause, place)
    if cause.issued_extra:
        return _issued_extra(context, cause)
    twins = duplicate_ranks(context.trace)
    if twins and cause.verdict in (Verdict.STUCK_COLLECTIVE, Verdict.RANK_LOST):
        return say("twice", ranks=rank_s(twins))
    if cause.verdict is Verdict.DEADLOCK_CYCLE and place is not None and is_lock(place):
        if all(map(is_lock, context.waits.at(cause.places))):
            return say("locks")
        held_at = [where(s.stack[0]) for s in sides if s.stack and {*s.ranks} & {*place.targets}]
        return say("release the lock", line=held_at[0] if held_at else "the collective")
    return for_rank(context, cause, place) or _for_all(context, cause, place, sides)


def _mismatch(context: Context, cause: Cause, found: Mismatch, sides: tuple[Side, ...]) -> Advice:
    advice = _of_aspect(found.aspect, guarded=guarded(sides))
    bucket = found.aspect in ("numel", "op") and _met_a_bucket(context, cause, found.group, sides)
    if bucket and not _is_ahead(context, cause, found):
        advice = say("buckets")
    elif (
        found.aspect == "op"
        or (found.aspect == "numel" and guarded(sides))
        or another_call(sides, found.aspect)
    ):
        advice = _other_operations(context, cause, found.group, sides)
    if any(_runs(_AT_JOINS_END, side) for side in sides):
        advice = say("inside join")
    elif any(_runs(_COMMUNICATION_HOOK, side) for side in sides):
        advice = say("communication hook")
    elif found.aspect == "numel" and _takes_sizes_in_turn(context, found, sides):
        advice = say("one of many", ranks=rank_s(cause.culprits))
    if race_of_threads(context, found) and all(
        _is_issued_by_others(context, found.group, side, sides) for side in sides
    ):
        advice = say("two threads")
    if found.leaving(context.trace.records):
        advice = say("leave together")
    lines = diverging_lines(sides[1], sides[0]) if len(sides) > 1 else []
    return _comparing(advice, cause, lines)


def _of_aspect(aspect: str, *, guarded: bool) -> Advice:
    """Members that issued operations which differ in this aspect of a `Mismatch`.

    ``guarded``: one side's call site was never reached by the other side.
    """
    return say("guarded" if guarded and aspect == "op" else aspect)


def _is_issued_by_others(context: Context, group: int, side: Side, sides: tuple[Side, ...]) -> bool:
    """Whether ranks of the other sides issue a side's operation at all, sooner or later.

    Otherwise one thread has issued what no other rank does, and a group of its own would not help.
    """
    others = [rank for one in sides if one is not side for rank in one.ranks]
    return not side.stack or been_there(context, others, group, side.stack, newest=True)


def _met_a_bucket(context: Context, cause: Cause, group: int, sides: tuple[Side, ...]) -> bool:
    """Whether gradients met other gradients, or what their ranks issue after the backward pass,
    too: one side has produced a bucket less."""
    reducing = [side for side in sides if in_backward(side)]
    others = [side for side in sides if not in_backward(side)]
    return (
        bool(reducing)
        and not _reduce_early(cause, reducing, others)
        and all(
            bool(side.stack) and been_there(context, reducing[0].ranks, group, side.stack)
            for side in others
        )
    )


def _is_ahead(context: Context, cause: Cause, found: Mismatch) -> bool:
    """Whether the accused issued this right after the same operation before: they have left no
    bucket out, but a whole step."""
    rows = [part.row for part in found.parts if {*part.ranks} <= {*cause.culprits}]
    return bool(rows) and all(_follows_as_before(context, row) for row in rows)


def _follows_as_before(context: Context, row: int) -> bool:
    """Whether the rank's previous operation in the group has been followed by this one before."""
    records = context.trace.records
    here = context.rows_in(int(records["rank"][row]), group=int(records["group"][row]))
    here = here[here <= row]
    calls = np.stack([records["signature"][here], records["stack"][here]], axis=1)
    before, after = calls[:-1], calls[1:]
    same = (before == before[-1:]).all(axis=1) & (after == after[-1:]).all(axis=1)
    return bool(same[:-1].any())


def _reduce_early(cause: Cause, reducing: list[Side], others: list[Side]) -> bool:
    """Whether only the accused reduce gradients: they have left out what the others are in, and
    are in the next backward pass."""
    ranks = {rank for side in reducing for rank in side.ranks}
    return bool(others) and ranks == {*cause.culprits}


def _runs(functions: re.Pattern[str], side: Side) -> bool:
    """Whether one of these torch functions is on the side's stack."""
    return any(functions.search(f"{f.filename}:{f.name}") for f in side.full_stack)


def _other_operations(
    context: Context, cause: Cause, group: int, sides: tuple[Side, ...]
) -> Advice:
    """Calls met that were not meant for each other: which side took another branch?

    If nothing else decides, it is the side at a line where the other has never been; otherwise
    neither may be named alone.
    """
    advice = _of_aspect("op", guarded=guarded(sides))
    if len(sides) != 2 or not sides[0].stack or not sides[1].stack:
        return advice
    most, few = sides
    undecided = cause.confidence is Confidence.AMBIGUOUS
    if undecided and (
        leaves_a_block(most, few)
        or (
            been_there(context, most.ranks, group, few.stack)
            and not been_there(context, few.ranks, group, most.stack)
        )
    ):
        most, few = few, most
    ranks = rank_s(few.ranks)
    if key := parted(context, few, most, group, group):
        either = key == "out of step" and undecided
        return say(key, ranks=f"one of {rank_s({*few.ranks, *most.ranks})}" if either else ranks)
    if not undecided and (line := one_call(few, most)):
        return say("inside one call", ranks=ranks, line=line)
    return advice


def _are_compared(context: Context, place: Place) -> bool:
    """Whether all members are known, and so is what each passed."""
    signature = context.signature(place.row)
    if signature is None or not 0 <= place.group < len(context.trace.groups):
        return False
    passed = (signature.input_sizes, signature.input_dtypes)
    compared = signature.op == "barrier" or None not in passed
    return compared and context.trace.groups[place.group].listed


def _takes_sizes_in_turn(context: Context, found: Mismatch, sides: tuple[Side, ...]) -> bool:
    """Whether all sides are at one line that issued a different size the time before.

    A batch has nearly always one size; parameters have different ones.
    """
    if len({side.stack for side in sides}) != 1 or not sides[0].stack:
        return False
    if all(in_backward(side) for side in sides):
        return False  # buckets have advice of their own
    records = context.trace.records
    rows = context.rows_in(int(records["rank"][found.parts[0].row]), group=found.group)
    rows = rows[records["collective_seq"][rows] <= found.seq][-_LAST:]
    sizes = [
        numel(signature.input_sizes)
        for row in rows.tolist()
        if user_frames(context.stack(row)) == sides[0].stack
        and (signature := context.signature(row)) is not None
    ]
    return len(sizes) > 2 and sum(a != b for a, b in pairwise(sizes)) * 2 > len(sizes) - 1


def _crossed(cause: Cause, sides: tuple[Side, ...]) -> Advice:
    """Of two tags that differ, either may be wrong; otherwise the first half is the stray one."""
    accused = (s for s in sorted(sides, key=lambda s: s.ranks) if {*s.ranks} & {*cause.culprits})
    suspects = accused if cause.conflict else sides[:1]
    lines = list(dict.fromkeys(where(side.stack[0]) for side in suspects if side.stack))
    what = "tag" if cause.conflict else "source or destination rank"
    named = f"{' and '.join(lines)} name" if len(lines) > 1 else f"{(*lines, 'its call')[0]} names"
    return say("names", what=what, named=named)


def _contradiction(cause: Cause, place: Place | None) -> Advice:
    if cause.verdict is Verdict.COLLECTIVE_MISMATCH:
        return say("new groups")
    if place is not None and place.phase:
        return missing(first=True)
    if cause.verdict is Verdict.SHAPE_MISMATCH and place is not None and not place.p2p:
        return say("splits")
    return say("dtype" if cause.verdict is Verdict.DTYPE_MISMATCH else "numel")


def _issued_extra(context: Context, cause: Cause) -> Advice:
    absent = cause.sides[0]
    processes = [context.processes[r] for r in absent]
    seen = [h.stack for h in processes if h.end is not End.CRASHED and h.stack]
    if not seen or any(h.end is End.CLEAN for h in processes):
        return say("guarded")
    stands = where(innermost(seen[0]))
    held = (
        f"; if {rank_s(absent)} wait at {stands} for a lock or a file, "
        f"{rank_s(cause.culprits)} has to release it, or to write it, before the collective"
    )
    return say("guarded", held=held)


def _for_all(
    context: Context, cause: Cause, place: Place | None, sides: tuple[Side, ...]
) -> Advice:
    """The verdict's own advice, extended by what places and sides show."""
    advice = say(cause.verdict)
    if cause.verdict is Verdict.STUCK_COLLECTIVE and place is not None:
        return _for_stuck(context, cause, place, sides) or advice
    if cause.verdict is Verdict.P2P_UNMATCHED:
        advice = _for_pair(advice, cause, sides)
        return with_dead_thread(context, advice, cause.culprits[0]) if cause.culprits else advice
    if cause.verdict is Verdict.DEADLOCK_CYCLE:
        return _for_cycle(context, cause, advice, sides)
    if cause.verdict is not Verdict.INCONCLUSIVE:
        return advice
    if counts_on(context.trace):
        return say("recorded elsewhere")
    return undecided(context, (rank for side in sides for rank in side.ranks))


def _for_stuck(
    context: Context, cause: Cause, place: Place, sides: tuple[Side, ...]
) -> Advice | None:
    """What else is known about a collective that nobody finishes; None if nothing."""
    if place.not_begun:
        lines = [where(s.stack[0]) for s in sides if s.stack and {*s.ranks} & {*cause.culprits}]
        return say(
            "held device",
            ranks=rank_s(place.not_begun),
            before=f" before {lines[0]}" if lines else "",
        )
    if place.counted:
        return say(Verdict.STUCK_COLLECTIVE, rest=", and what else is queued in their streams")
    if not _are_compared(context, place):
        return say(
            Verdict.STUCK_COLLECTIVE, rest="; whether all passed the same arguments is not recorded"
        )
    return None


def _for_cycle(context: Context, cause: Cause, advice: Advice, sides: tuple[Side, ...]) -> Advice:
    """The shape of a cycle, and which of its lines to look at."""
    lines = [where(s.stack[0]) for s in sides if s.stack]
    reducing = [side for side in sides if in_backward(side)]
    others = [side for side in sides if not in_backward(side)]
    both = bool(reducing and others) and all(side.op is not None for side in sides)
    if both and not _reduce_early(cause, reducing, others):
        return say("buckets")
    if _crossed_handles(context, cause, sides):
        return say("crossed handles", line=lines[0])
    if _same_half_first(context, cause, sides):
        return say("same half first", verb=sides[0].op or "recv")
    crossed = crossing(context, cause)
    if crossed is not None:
        return _for_crossing(context, cause, crossed, sides)
    if len(sides) == len(set(lines)) == 2:
        accused = 0 if set(sides[0].ranks) <= set(cause.culprits) else 1
        return _comparing(advice, cause, [lines[accused], lines[1 - accused]])
    return advice


def _for_pair(advice: Advice, cause: Cause, sides: tuple[Side, ...]) -> Advice:
    """The accused are elsewhere without their half: the lines show from where they went on."""
    absent = next((s for s in sides if s.stack and set(s.ranks) <= set(cause.culprits)), None)
    waiting = next((s for s in sides if s.stack and not set(s.ranks) & set(cause.culprits)), None)
    if absent is None or waiting is None:
        return advice
    return _comparing(advice, cause, diverging_lines(absent, waiting))


def _for_crossing(
    context: Context, cause: Cause, crossed: Crossing, sides: tuple[Side, ...]
) -> Advice:
    """The accused are at one place and not at the other: their lines may show why."""
    accused, waiters = set(cause.culprits), set(crossed.without.waiters)
    few = next((s for s in sides if s.stack and accused.issuperset(s.ranks)), None)
    most = next((s for s in sides if s.stack and waiters.issuperset(s.ranks)), None)
    key, title = "", title_of(context, crossed.without)
    if few is not None and most is not None:
        key = parted(context, few, most, crossed.came_to.group, crossed.without.group)
    key = "left out" if key in ("", "out of step") else key
    advice = say(key, ranks=rank_s(cause.culprits), title=title)
    if few is None or most is None or few.stack[-1] != most.stack[-1]:  # of different threads
        return advice
    return _comparing(advice, cause, diverging_lines(few, most))


def _crossed_handles(context: Context, cause: Cause, sides: tuple[Side, ...]) -> bool:
    """Whether one call of all ranks used several groups that have the same members."""
    groups = {place.group for place in context.waits.at(cause.places)}
    members = {frozenset(context.trace.groups[g].ranks) for g in groups if g >= 0}
    return (
        len(groups) > 1
        and len(members) == 1
        and bool(sides)
        and bool(sides[0].stack)
        and len({(s.stack, s.op, s.input_sizes) for s in sides}) == 1
    )


def _same_half_first(context: Context, cause: Cause, sides: tuple[Side, ...]) -> bool:
    """Whether all ranks of a cycle are at one line, in one kind of half each."""
    pairs = all(place.p2p for place in context.waits.at(cause.places))
    return pairs and len(sides) > 1 and len({(s.stack, s.op) for s in sides}) == 1


def _comparing(advice: Advice, cause: Cause, lines: list[str]) -> Advice:
    """Which two lines to look at: where the ranks first diverged, else where they are now.

    That comes first because it is the next step, and a narrow display may cut off the rest.
    ``lines``: that of the accused, and that of the others.
    """
    if cause.diverged is not None:
        seq, own, others = cause.diverged
        pair = f"{own} with {others}, where they parted at #{seq}"
    elif len(set(lines)) == 2:
        pair = f"{lines[0]} with {lines[1]}"
    else:
        return advice
    return replace(advice, fix=f"compare {pair}; {advice.fix}")
