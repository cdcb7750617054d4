"""Members that do not carry out their part of a collective in which everybody stands."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.causes.run_ahead import blame_stayed
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence
from hangscope.diagnosis.records.agreement import family
from hangscope.trace.job_selection.duplicate_ranks import duplicate_ranks

_FROM_ONE = ("broadcast", "scatter")


def blame_unfit(context: Context, index: int, cause: Cause) -> Cause:
    """Blame a stuck place on ranks that do not carry out their part of it."""
    place = context.waits.places[index]
    double = sorted(duplicate_ranks(context.trace).keys() & {*place.waiters, *place.members})
    odd = tuple(double) or _unserved(context, place)
    if odd:
        return replace(cause, culprits=odd, confidence=Confidence.LIKELY)
    return blame_stayed(context, place, cause)


def _unserved(context: Context, place: Place) -> tuple[int, ...]:
    """The few ranks that cannot finish a one-to-all or all-to-one operation others could finish.

    One of those that could finish may be the root of a one-to-all, which needs nobody; the rest
    have received their part. In an all-to-one the root waits for those few, and only the root has
    room for all parts.
    """
    signature = context.signature(place.row)
    if signature is None or place.absent or place.unknown:
        return ()
    stuck, what = set(place.waiters), family(signature.op)
    if what == "gather":
        stuck -= set(_collecting(context, place))
        if len(place.waiters) - len(stuck) != 1:
            return ()
    elif what not in _FROM_ONE:
        return ()
    return tuple(sorted(stuck)) if len(place.done) > max(len(stuck), 1) else ()


def _collecting(context: Context, place: Place) -> list[int]:
    """The waiters with room for everybody's part."""
    records = context.trace.records
    with_room = {
        int(records["rank"][row])
        for row in context.rows_at(place.group, place.seq).tolist()
        if (what := context.signature(row)) is not None and what.output_sizes
    }
    return sorted(with_room & set(place.waiters))
