"""Ranks that issued one operation more than the others, which are not wrong for staying away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.stacks import innermost
from hangscope.diagnosis.wording.phrases import rank_s, title_of
from hangscope.trace.model import Flag


def accuse_both_sides(context: Context, cause: Cause, unknown: tuple[int, ...]) -> Cause:
    """Accuse both sides: as many wait as are absent (or may be), so either could be wrong.

    ``unknown``: members that left nothing and may be on either side.
    """
    absent, waiting = cause.sides
    title = title_of(context, context.waits.places[cause.places[0]])
    words = Words(
        f"{rank_s(waiting).capitalize()} issued {title}, {rank_s(absent)} did not",
        "one side issued one operation too many, or the other one too few; "
        f"{rank_s(unknown)} left nothing and may be on either"
        if unknown
        else "one half issued one operation too many, or the other one too few; both sides are "
        "equally large, so nothing decides between them",
        "look for the condition under which only some ranks reach this line: a collective must not "
        "depend on it",
    )
    return replace(
        cause,
        culprits=tuple(sorted((*absent, *waiting))),
        victims=frozenset(),
        confidence=Confidence.AMBIGUOUS,
        words=words,
    )


def outliers(context: Context, absent: tuple[int, ...], places: Sequence[int]) -> tuple[int, ...]:
    """The waiting ranks, if they are no more than the absent ones and those all do the same.

    Three ranks that all finished are not wrong because a fourth issued one more collective. If
    equally many wait, that only holds if nothing is known about what the absent ranks do. Members
    that left nothing may have arrived or not: they do not put the smaller waiting side in the right
    if the absent ranks are seen to do the same. A member without a ring that a journal saw exit
    cleanly has not arrived.
    """
    waits = context.waits
    if any(place.phase for place in waits.at(places)):
        return ()
    waiters = sorted(waits.waiters_at(places))
    unknown = {r for place in waits.at(places) for r in place.unknown}
    finished = {r for r in unknown & context.unrecorded if context.processes[r].end is End.CLEAN}
    unknown -= finished
    many = len(absent) + len(finished)
    tie = len(waiters) == many and not unknown
    if (len(waiters) >= many and not tie) or many < 2:
        return ()
    group = _where_they_meet(context, waiters, absent, places)
    if group is None:
        return ()
    fronts = {context.last_in_group(r, group)[0] for r in absent}
    if len(fronts) != 1:
        return ()
    if any(not _can_go_on(context, rank) for rank in absent):
        return ()
    doing = {"finished"} if finished else set()
    doing |= {_doing(context, rank) for rank in absent}
    if tie and (doing != {""} or _is_unobserved(context, places)):
        # It is known what the absent do instead, or they may wait in something unrecorded.
        return ()
    if len(waiters) + len(unknown) >= many and not tie and doing == {""}:
        return ()  # nothing shows that the absent do the same
    return tuple(waiters) if len(doing) == 1 else ()


def _can_go_on(context: Context, rank: int) -> bool:
    """Whether a rank left records and is neither stopped nor kept from the GIL."""
    process = context.processes.get(rank)
    if process is None or rank not in context.trace.ranks:
        return False
    return not process.cannot_run


def _doing(context: Context, rank: int) -> str:
    """What a rank does instead of joining the others; empty if unknown."""
    process = context.processes[rank]
    if process.end is End.CLEAN or context.trace.ranks[rank].finalized:
        return "finished"
    if process.phase is not None:
        return process.phase
    frame = innermost(process.stack)
    return f"{frame.filename}:{frame.name}" if frame is not None else ""


def _where_they_meet(
    context: Context, waiters: list[int], absent: tuple[int, ...], places: Sequence[int]
) -> int | None:
    """The group in which all waiting ranks wait for all absent ones, if there is one.

    A device queue keeps accepting work: a rank that waits in a collective may also wait for some of
    them elsewhere.
    """
    here = context.waits.at(places)
    if len({place.group for place in here}) == 1 and not any(place.p2p for place in here):
        return here[0].group
    shared = (
        place.group
        for place in here
        if not place.p2p and list(place.waiters) == waiters and set(absent) <= set(place.absent)
    )
    return next(shared, None)


def _is_unobserved(context: Context, places: Sequence[int]) -> bool:
    """Whether the waiters' recorder does not record completions (Gloo's own)."""
    rows = [place.row for place in context.waits.at(places)]
    flags = context.trace.records["flags"]
    return any(row >= 0 and int(flags[row]) & int(Flag.UNOBSERVED) for row in rows)
