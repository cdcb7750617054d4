"""What to do about a cause: which advice of the playbook fits, and where to look."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.ends.own_doing import own_errors
from hangscope.diagnosis.ends.threads import dead_thread, handed_to_a_pool, race_of_threads
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import INIT, Place
from hangscope.diagnosis.graph.stores import PREFIX as STORE
from hangscope.diagnosis.model import Confidence, Side, Verdict
from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.diagnosis.processes.host import End, is_late_abort
from hangscope.diagnosis.processes.stacks import innermost, user_frames, where
from hangscope.diagnosis.records.agreement import numel
from hangscope.diagnosis.records.mismatch import Mismatch
from hangscope.diagnosis.words import disorder, playbook
from hangscope.diagnosis.words.circles import Crossing, crossing
from hangscope.diagnosis.words.crashes import aborted_at_its_end, crash, crash_of_all
from hangscope.diagnosis.words.handled import handled_alone
from hangscope.diagnosis.words.lines import (
    been_there,
    in_finalizer,
    leaves_a_block,
    parted_lines,
    stands_behind,
)
from hangscope.diagnosis.words.phrases import address, everybody_is, rank_s, title_of
from hangscope.diagnosis.words.playbook import Advice
from hangscope.diagnosis.words.sentences import left_its_own_behind
from hangscope.diagnosis.words.sides import guarded, in_backward
from hangscope.trace.attempts.twins import doubled
from hangscope.trace.model import NONE, ExceptionFacts

_LAST = 16
"""So many of a rank's newest operations tell whether its sizes differ from time to time."""


def advice(context: Context, cause: Cause, place: Place | None, sides: tuple[Side, ...]) -> Advice:
    """The fix for one cause; ``place`` is the one that its summary speaks of."""
    if cause.words.fix:
        return Advice(cause.words.fix, "D19")
    handled = handled_alone(context, cause)
    if handled is not None:
        whose = rank_s((handled.rank,))
        ended = handled.is_end_of_data
        return playbook.data_ended(whose) if ended else playbook.handling(whose, handled.words)
    if cause.mismatch is not None:
        return _mismatch(context, cause, cause.mismatch, sides)
    if cause.crossed:
        return _crossed(cause, sides)
    if cause.conflict:
        return _contradiction(cause, place)
    if cause.odd_one:
        return _odd_one(context, cause)
    twins = doubled(context.trace)
    if twins and cause.verdict in (Verdict.STUCK_COLLECTIVE, Verdict.RANK_LOST):
        return Advice(
            "give every process a RANK of its own: two processes say that they are "
            f"{rank_s(twins)}",
            "D1, D4",
        )
    if cause.verdict is Verdict.DEADLOCK_CYCLE and place is not None and is_lock(place):
        if all(is_lock(context.waits.places[i]) for i in cause.places):
            return playbook.locks_in_order()
        held_at = [where(s.stack[0]) for s in sides if s.stack and {*s.ranks} & {*place.targets}]
        return playbook.release_lock(held_at[0] if held_at else "")
    return _for_process(context, cause, place) or _for_all(context, cause, place, sides)


def _mismatch(context: Context, cause: Cause, found: Mismatch, sides: tuple[Side, ...]) -> Advice:
    advice = disorder.mismatch(found.aspect, guarded=guarded(sides))
    if found.aspect == "numel" and sides and all(in_backward(s) for s in sides):
        advice = disorder.buckets()
    elif (
        found.aspect == "op"
        or (found.aspect == "numel" and guarded(sides))
        or _another_call(sides, found.aspect)
    ):
        advice = _other_operations(context, cause, found.group, sides)
    if found.aspect == "numel" and _takes_sizes_in_turn(context, found, sides):
        advice = disorder.one_of_many(rank_s(cause.culprits))
    if race_of_threads(context, found):
        advice = disorder.two_threads()
    elif all(handed_to_a_pool(side.full_stack) for side in sides):
        advice = disorder.pool_of_threads()
    if found.leaving(context.trace.records):
        advice = disorder.leave_together()
    lines = parted_lines(sides[1], sides[0]) if len(sides) > 1 else []
    return _comparing(advice, cause, lines)


def _other_operations(
    context: Context, cause: Cause, group: int, sides: tuple[Side, ...]
) -> Advice:
    """Calls met that were not meant for each other: which of the two sides took another way?

    Where nothing decides between them, it is the one at a line at which the other has never been;
    else neither may be named alone.
    """
    advice = disorder.mismatch("op", guarded=guarded(sides))
    if len(sides) != 2 or not sides[0].stack or not sides[1].stack:
        return advice
    most, few = sides
    if in_finalizer(few) or in_finalizer(most):
        return disorder.finalizer()
    undecided = cause.confidence is Confidence.AMBIGUOUS
    if undecided and (
        leaves_a_block(most, few)
        or (
            been_there(context, most.ranks, group, few.stack)
            and not been_there(context, few.ranks, group, most.stack)
        )
    ):
        most, few = few, most
    if leaves_a_block(few, most):
        return disorder.left_block(rank_s(few.ranks))
    if few.stack != most.stack and been_there(context, most.ranks, group, few.stack):
        either = f"one of {rank_s({*few.ranks, *most.ranks})}"
        return disorder.out_of_step(either if undecided else rank_s(few.ranks))
    if stands_behind(few, most) and been_there(context, few.ranks, group, most.stack):
        return disorder.guarded_or_early(rank_s(few.ranks))
    return advice


def _are_compared(context: Context, place: Place) -> bool:
    """Whether what all members passed is on record, and who they are."""
    signature = context.signature(place.row)
    if signature is None or not 0 <= place.group < len(context.trace.groups):
        return False
    passed = (signature.input_sizes, signature.input_dtypes)
    compared = signature.op == "barrier" or None not in passed
    return compared and context.trace.groups[place.group].listed


def _another_call(sides: tuple[Side, ...], aspect: str) -> bool:
    """Whether calls of different lines met, whose tensors were never meant for each other.

    Sizes differ from call to call; a dtype alone may differ because one line casts.
    """
    known = [s for s in sides if s.stack and s.input_sizes is not None]
    return (
        len(known) > 1
        and len({s.stack for s in known}) == len(known)
        and len({numel(s.input_sizes) for s in known}) > 1
        and (aspect == "numel" or len({s.dtypes for s in known}) > 1)
    )


def _takes_sizes_in_turn(context: Context, found: Mismatch, sides: tuple[Side, ...]) -> bool:
    """Whether all sides are at one line, at which the last time the size was another one as well.

    A batch has one size nearly always; parameters have different ones.
    """
    if len({side.stack for side in sides}) != 1 or not sides[0].stack:
        return False
    if all(in_backward(side) for side in sides):
        return False  # buckets, of which other words are said
    records = context.trace.records
    rank = int(records["rank"][found.parts[0].row])
    low, high = context.bounds[rank]
    mine = records[low:high]
    here = (mine["group"] == found.group) & (mine["collective_seq"] <= found.seq)
    rows = np.flatnonzero(here)[-_LAST:] + low
    sizes = [
        numel(signature.input_sizes)
        for row in rows.tolist()
        if user_frames(context.stack(row)) == sides[0].stack
        and (signature := context.signature(row)) is not None
    ]
    return len(sizes) > 2 and sum(a != b for a, b in pairwise(sizes)) * 2 > len(sizes) - 1


def _crossed(cause: Cause, sides: tuple[Side, ...]) -> Advice:
    line = where(sides[0].stack[0]) if sides and sides[0].stack else "its call"
    what = "tag" if cause.conflict else "source or destination rank"
    return replace(playbook.by_verdict(cause.verdict), fix=f"check the {what} that {line} names")


def _contradiction(cause: Cause, place: Place | None) -> Advice:
    if cause.verdict is Verdict.COLLECTIVE_MISMATCH:
        return disorder.new_groups()
    if place is not None and place.phase:
        return playbook.missing(first=True)
    if cause.verdict is Verdict.SHAPE_MISMATCH and place is not None and not place.p2p:
        return disorder.splits()
    return disorder.mismatch("dtype" if cause.verdict is Verdict.DTYPE_MISMATCH else "numel")


def _odd_one(context: Context, cause: Cause) -> Advice:
    advice = disorder.mismatch("op", guarded=True)
    absent = cause.sides[0]
    hosts = [context.hosts[r] for r in absent]
    seen = [h.stack for h in hosts if h.end is not End.CRASHED and h.stack]
    if not seen or any(h.end is End.CLEAN for h in hosts):
        return advice
    stands = where(innermost(seen[0]))
    held = (
        f"; if {rank_s(absent)} wait at {stands} for a lock or a file, "
        f"{rank_s(cause.culprits)} has to release it, or to write it, before the collective"
    )
    return replace(advice, fix=advice.fix + held)


def _for_process(context: Context, cause: Cause, place: Place | None) -> Advice | None:
    """What follows from how the first of the accused ended, or from what it does; None: nothing."""
    rank = cause.culprits[0] if cause.culprits else NONE
    host = context.host_in(rank, place.group) if place is not None else context.hosts.get(rank)
    facts = context.trace.ranks.get(rank)
    at = address(context, rank)
    if cause.verdict is Verdict.MISSING_RANK and place is not None:
        dead = dead_thread(context, rank, place.group)
        if dead is not None:
            return _dead_thread(dead, at)
    if place is not None and place.phase.startswith(STORE):
        return playbook.key_to_set(playbook.place_of(host, at))
    stopped = facts is not None and facts.process_state == "stopped"
    if place is not None and is_lock(place):
        return playbook.lock_to_release(playbook.place_of(host, at))
    if cause.verdict is Verdict.MISSING_RANK or (
        cause.verdict is Verdict.STUCK_COLLECTIVE and stopped
    ):
        advice = playbook.missing(
            host,
            at,
            first=place is not None and place.phase == INIT,
            finalized=bool(facts and facts.finalized),
        )
        return _with_dead_thread(advice, facts.exception if facts is not None else None)
    if cause.verdict is Verdict.RANK_LOST:
        if context.unreadable.keys() >= set(cause.culprits):
            return playbook.unreadable(rank_s(cause.culprits))
        return playbook.by_verdict(cause.verdict, at)
    raised = facts.exception if facts is not None else None
    if cause.verdict is Verdict.RANK_CRASHED and host is not None:
        said = own_errors(context.trace.claims).get(rank)
        message = raised.message if raised is not None else ""
        frames = user_frames(raised.stack) if raised is not None else ()
        if place is None and is_late_abort(host):
            return aborted_at_its_end(at, destroyed=facts is not None and bool(facts.finalized))
        advice = crash(
            " ".join((host.end_text, message, said.text if said is not None else "")),
            _and(where(frames[0] if frames else None), at),
        )
        return crash_of_all(advice) if everybody_is(context, cause.culprits) else advice
    early = cause.verdict is Verdict.RANK_EXITED and place is not None
    if early and place is not None and left_its_own_behind(cause, place) and raised is None:
        return playbook.left_its_own_behind(rank_s(cause.culprits))
    if cause.verdict is Verdict.RANK_EXITED and raised is not None and not raised.is_main_thread:
        return None if is_secondary(raised.message) else _dead_thread(raised, at)
    return None


def _with_dead_thread(advice: Advice, raised: ExceptionFacts | None) -> Advice:
    """What a rank waits for in vain may be what a thread of it was to deliver that has died."""
    if raised is None or raised.is_main_thread or is_secondary(raised.message):
        return advice
    line = where(innermost(raised.stack))
    ended = f"see what ended its thread {raised.thread_name}{f', at {line}' if line else ''}"
    return replace(advice, fix=f"{advice.fix}; {ended}")


def _dead_thread(died: ExceptionFacts, at: str) -> Advice:
    return playbook.dead_thread(died.thread_name, _and(where(innermost(died.stack)), at))


def _and(line: str, at: str) -> str:
    """A line of code and an address, as far as they are known."""
    return " ".join(x for x in (line, at) if x)


def _for_all(
    context: Context, cause: Cause, place: Place | None, sides: tuple[Side, ...]
) -> Advice:
    """The verdict's own advice; of a circle also which of its lines to look at."""
    if cause.verdict is Verdict.STUCK_COLLECTIVE and place is not None:
        if place.not_begun:
            lines = [where(s.stack[0]) for s in sides if s.stack and {*s.ranks} & {*cause.culprits}]
            return playbook.held_device(rank_s(place.not_begun), lines[0] if lines else "")
        if place.counted:
            return playbook.stuck(", and what else stands in their streams")
        if not _are_compared(context, place):
            return playbook.stuck("; whether all passed the same arguments is not recorded")
    advice = playbook.by_verdict(cause.verdict)
    if cause.verdict is Verdict.P2P_UNMATCHED:
        return _for_pair(advice, cause, sides)
    if cause.verdict is not Verdict.DEADLOCK_CYCLE:
        return advice
    lines = [where(s.stack[0]) for s in sides if s.stack]
    if _crossed_handles(context, cause, sides) and _all_of_a_world(context, cause):
        return disorder.world_again(rank_s(cause.culprits))
    if _crossed_handles(context, cause, sides):
        return disorder.crossed_handles(lines[0])
    if _same_half_first(context, cause, sides):
        return disorder.ring_of_waits(sides[0].op or "recv")
    crossed = crossing(context, cause)
    if crossed is not None:
        return _for_crossing(context, cause, crossed, sides)
    if len(sides) == len(set(lines)) == 2:
        accused = 0 if set(sides[0].ranks) <= set(cause.culprits) else 1
        return _comparing(advice, cause, [lines[accused], lines[1 - accused]])
    return advice


def _for_pair(advice: Advice, cause: Cause, sides: tuple[Side, ...]) -> Advice:
    """The accused are elsewhere without their half: the lines tell from where they went on."""
    absent = next((s for s in sides if s.stack and set(s.ranks) <= set(cause.culprits)), None)
    waiting = next((s for s in sides if s.stack and not set(s.ranks) & set(cause.culprits)), None)
    if absent is None or waiting is None:
        return advice
    return _comparing(advice, cause, parted_lines(absent, waiting))


def _for_crossing(
    context: Context, cause: Cause, crossed: Crossing, sides: tuple[Side, ...]
) -> Advice:
    """The accused are at one place and not at the other: their lines may tell why."""
    accused, waiters = set(cause.culprits), set(crossed.without.waiters)
    advice = disorder.left_out(rank_s(cause.culprits), title_of(context, crossed.without))
    few = next((s for s in sides if s.stack and accused.issuperset(s.ranks)), None)
    most = next((s for s in sides if s.stack and waiters.issuperset(s.ranks)), None)
    if few is None or most is None:
        return advice
    if leaves_a_block(few, most):
        advice = disorder.left_block(rank_s(few.ranks))
    elif (
        stands_behind(few, most)
        and been_there(context, few.ranks, crossed.without.group, most.stack)
        and not been_there(context, most.ranks, crossed.came_to.group, few.stack)
    ):
        advice = disorder.guarded_or_early(rank_s(few.ranks))
    if few.stack[-1] == most.stack[-1]:  # else they are of different threads
        return _comparing(advice, cause, parted_lines(few, most))
    return advice


def _crossed_handles(context: Context, cause: Cause, sides: tuple[Side, ...]) -> bool:
    """Whether one call of all ranks went to several groups that have the same members."""
    groups = {context.waits.places[i].group for i in cause.places}
    members = {frozenset(context.trace.groups[g].ranks) for g in groups if g >= 0}
    return (
        len(groups) > 1
        and len(members) == 1
        and bool(sides)
        and bool(sides[0].stack)
        and len({(s.stack, s.op, s.input_sizes) for s in sides}) == 1
    )


def _all_of_a_world(context: Context, cause: Cause) -> bool:
    """Whether the groups are default ones: one of them was made after the other was destroyed."""
    groups = {context.waits.places[i].group for i in cause.places} - {NONE}
    return all(context.trace.groups[g].desc == "default_pg" for g in groups)


def _same_half_first(context: Context, cause: Cause, sides: tuple[Side, ...]) -> bool:
    """Whether all of a circle stand at one line, in one kind of half each."""
    pairs = all(context.waits.places[i].p2p for i in cause.places)
    return pairs and len(sides) > 1 and len({(s.stack, s.op) for s in sides}) == 1


def _comparing(advice: Advice, cause: Cause, lines: list[str]) -> Advice:
    """Which two lines to look at: those where the ranks parted first, or else where they stand.

    That comes first: it is the next step, and what is behind it may be cut off in a narrow place.
    ``lines``: that of the accused, and that of the others.
    """
    if cause.parted is not None:
        seq, mine, theirs = cause.parted
        pair = f"{mine} with {theirs}, where they parted at #{seq}"
    elif len(set(lines)) == 2:
        pair = f"{lines[0]} with {lines[1]}"
    else:
        return advice
    return replace(advice, fix=f"compare {pair}; {advice.fix}")
