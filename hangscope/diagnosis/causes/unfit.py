"""Places where everybody stands, and members that do not carry out their part.

A member may be double. A host that did not run ahead, as the others did,
failed inside the operation: a living host goes on enqueueing on a device until it needs a result.
Members may stand in operations too far apart to be one sequence. And a group that was made by
hand may span several jobs (trainers, inference engines): nothing of its others is on record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hangscope.diagnosis.cause import Cause, Words, began
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.process_state import in_communication
from hangscope.diagnosis.records.kinds import is_on_host
from hangscope.diagnosis.wording.phrases import capital, does, label_of, rank_s, title_of, verb
from hangscope.trace.job_selection.duplicate_ranks import duplicate_ranks
from hangscope.trace.model import NONE, Flag


def blame_unfit(context: Context, index: int, cause: Cause) -> Cause:
    """Blame a stuck place on ranks that do not carry out their part of it."""
    place = context.waits.places[index]
    double = sorted(duplicate_ranks(context.trace).keys() & {*place.waiters, *place.members})
    if double:
        return replace(cause, culprits=tuple(double), confidence=Confidence.LIKELY)
    return blame_stayed(context, place, cause)


_WAITED = 5
"""A rank that took this many times as long as the others before it issued more needs the result."""


def blame_stayed(context: Context, place: Place, cause: Cause) -> Cause:
    """Accuse the few hosts that have issued nothing after a place where all members stand."""
    stayed = _stayed(context, place)
    if not stayed:
        return cause
    others = [rank for rank in place.waiters if rank not in stayed]
    words = Words(
        f"{capital(rank_s(stayed))} probably failed inside {title_of(context, place)}: nothing "
        f"was issued there since, while {rank_s(others)} ran ahead",
        "a living host would have run ahead as the others did: its process, or its device, stands "
        "in that operation, and nobody can finish it",
        f"look at {rank_s(stayed)}: whether the process still runs, where it stands (py-spy dump), "
        "and its kernel log (Xid errors)",
    )
    named = cause.accusing(stayed, Confidence.LIKELY)
    return replace(named, words=words, sides=(stayed, tuple(others)))


def _stayed(context: Context, place: Place) -> tuple[int, ...]:
    signature = context.signature(place.row)
    if place.p2p or place.phase or place.targets or signature is None or is_on_host(signature):
        return ()
    rows = {rank: context.row_of(place.group, rank, place.seq) for rank in place.waiters}
    if NONE in rows.values():
        return ()
    stayed = tuple(rank for rank, row in rows.items() if row + 1 == context.bounds[rank][1])
    if len(stayed) * 2 >= len(rows) or any(_waits(context, rank, rows) for rank in stayed):
        return ()
    return stayed


def _waits(context: Context, rank: int, rows: Mapping[int, int]) -> bool:
    """Whether a rank is seen to wait like the others, or has always waited at this line."""
    process = context.processes.get(rank)
    if process is not None and in_communication(process.stack):
        return True
    ahead = [_usual_pause_ns(context, row) for r, row in rows.items() if r != rank]
    return _usual_pause_ns(context, rows[rank]) > _WAITED * float(np.median(ahead))


def _usual_pause_ns(context: Context, row: int) -> float:
    """How long the rank usually takes from this call to its next one, in ns; 0 if never seen."""
    records = context.trace.records
    low = context.bounds[int(records["rank"][row])][0]
    own = records[low : row + 1]
    alike = np.ones(len(own) - 1, bool)
    for column in ("group", "signature", "stack"):
        alike &= own[column][:-1] == own[column][-1]
    pauses = np.diff(own["created_ns"])[alike]
    return float(np.median(pauses)) if len(pauses) else 0.0


def waits_for_unlisted(context: Context, place: Place) -> bool:
    """Whether the waiters at a place wait for members of which nothing is recorded."""
    groups = context.trace.groups
    return place.blind and 0 <= place.group < len(groups) and bool(groups[place.group].outsiders)


def wait_for_unlisted(context: Context, indexes: list[int]) -> Cause:
    """The cause for such places: together they are one wait for others."""
    places = context.waits.at(indexes)
    waiters = frozenset(rank for place in places for rank in place.waiters)
    others = sum(context.trace.groups[place.group].outsiders for place in places)
    title = title_of(context, places[0])
    what = title if len(places) == 1 else f"{title} and other such groups"
    who = f"{rank_s(waiters).capitalize()} {verb(waiters, 'waits')} in {what} for"
    flags = context.trace.records["flags"][[place.row for place in places]]
    if (flags & int(Flag.FROM_NCCL)).all():
        words = Words(
            f"{who} members of which NCCL told nothing here",
            "they are on other nodes, or NCCL's plugin was not loaded there",
            "analyze the run directories of all nodes together",
        )
    else:
        words = Words(
            f"{who} {'a process that is' if others == 1 else 'processes that are'} no known rank "
            "of this job",
            "the group was made by hand, not by torch.distributed.new_group: it may span several "
            "jobs (replicas, trainers and inference engines), and which processes have its other "
            "places is not recorded",
            "look at the group's other processes: HangScope's report on their job, their log or "
            "their stacks show which of them has not come",
        )
    return Cause(
        Verdict.INCONCLUSIVE,
        (),
        tuple(indexes),
        Confidence.LIKELY,
        began(context, indexes),
        waiters,
        words=words,
    )


_FIX = (
    "look for work that only some of these ranks do, or do more often (a checkpoint, an "
    "evaluation, a log): every member must issue the same operations in the same order"
)


def ran_apart(context: Context, cause: Cause) -> Cause | None:
    """The cause if members that could not finish a collective and members that have finished more
    than that cannot have issued the same sequence.

    A device works through the operations of a group in their order. So who has finished #90 needed
    the others' part in it, which those that still wait in #88 cannot have begun. Only logs can show
    this: their watchdogs speak at the end of one and the same wait.
    """
    waits = context.waits
    if len(cause.places) != 1:
        return None
    place = waits.places[cause.places[0]]
    later = [
        other
        for other in waits.places
        if other.group == place.group
        and other.seq > place.seq + 1
        and not other.p2p
        and set(other.waiters) & set(place.done)
    ]
    if not later or context.place_op(later[0]) == context.place_op(place):
        return None
    if not (_timed_out(context, place) and _timed_out(context, later[0])):
        return None  # one of them may have lost a peer that ended first
    return _of_both_sides(context, cause, place, later[0])


def _timed_out(context: Context, place: Place) -> bool:
    """Whether a watchdog says that somebody waited there until the timeout."""
    return place.row >= 0 and bool(context.trace.records["flags"][place.row] & int(Flag.TIMED_OUT))


def _of_both_sides(context: Context, cause: Cause, place: Place, later: Place) -> Cause:
    ahead = later.waiters
    words = Words(
        f"The members of {label_of(context, place.group)} ran apart: "
        f"{does(cause.culprits, 'waits')} in {title_of(context, place)}, "
        f"{rank_s(ahead)} in {title_of(context, later)}",
        f"{rank_s(ahead)} finished #{later.seq - 1}, in which "
        f"{rank_s(cause.culprits)} cannot have taken part yet: calls of one number are not one "
        "operation there",
        _FIX,
    )
    both = tuple(sorted({*cause.culprits, *ahead}))
    return replace(
        cause,
        verdict=Verdict.COLLECTIVE_MISMATCH,
        culprits=both,
        places=(*cause.places, context.waits.places.index(later)),
        confidence=Confidence.AMBIGUOUS,
        words=words,
        sides=(tuple(cause.culprits), tuple(ahead)),
    )
