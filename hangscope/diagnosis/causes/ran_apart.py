"""Members of one group that wait in different operations, too far apart to be the same sequence."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.wording.phrases import label_of, rank_s, title_of, wait_s
from hangscope.trace.model import Flag

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
    if not context.trace.only_logs or len(cause.places) != 1:
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
        f"{rank_s(cause.culprits)} {wait_s(cause.culprits)} in {title_of(context, place)}, "
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
