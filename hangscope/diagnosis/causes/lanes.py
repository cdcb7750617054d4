"""One cause that shows in every lane: ranks side by side that did the same in sibling groups.

A data-parallel replica or a pipeline stage is a row of ranks, each in a group of its own with its
counterparts. What all of such a row left out shows once in each of these groups, at one number; no
lane explains another one, and yet it is one mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hangscope.diagnosis.cause import Cause, shown_place
from hangscope.diagnosis.causes.circle_breakers import places_at
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict

_Shape = tuple[object, ...]


def in_lanes(context: Context, causes: Sequence[Cause]) -> list[list[Cause]]:
    """The causes in their order, those of one shape that name different ranks together."""
    lanes: list[list[Cause]] = []
    of_shape: dict[_Shape, list[Cause]] = {}
    for cause in causes:
        shape = _shape(context, cause)
        known = of_shape.get(shape) if shape else None
        if known is not None and _are_others(cause, known):
            known.append(cause)
            continue
        lanes.append([cause])
        if shape:
            of_shape[shape] = lanes[-1]
    return lanes


def _are_others(cause: Cause, known: Iterable[Cause]) -> bool:
    return all(set(cause.culprits).isdisjoint(other.culprits) for other in known)


def _shape(context: Context, cause: Cause) -> _Shape:
    """What causes of one mistake have in common; empty where that cannot be said.

    The kind of group, the number there, who of its members is accused, and what was issued.
    """
    if not cause.culprits or cause.crossed or cause.conflict:
        return ()
    named = cause.verdict, cause.confidence is Confidence.AMBIGUOUS, cause.odd_one
    found = cause.mismatch
    if found is not None:
        issued = tuple(_op(context, part.row) for part in found.parts)
        place = _position(context, found.group, found.seq, cause.culprits)
        return (*named, found.aspect, issued, *place) if place else ()
    if cause.verdict is Verdict.DEADLOCK_CYCLE:
        here = [p for p in places_at(context, cause.places) if p.group >= 0]
        edges = {
            (p.p2p, _op(context, p.row), *_position(context, p.group, 0, cause.culprits))
            for p in here
        }
        return (*named, frozenset(edges)) if len(here) == len(cause.places) else ()
    shown = shown_place(context, cause)
    if shown is None or shown.group < 0:
        return ()
    position = _position(context, shown.group, shown.seq, cause.culprits)
    return (*named, shown.p2p, _op(context, shown.row), *position) if position else ()


def _op(context: Context, row: int) -> str:
    """The operation of a record; empty where that is not on record."""
    signature = context.trace.records["signature"][row] if row >= 0 else -1
    return context.families[signature] if signature >= 0 else ""


def _position(context: Context, group: int, seq: int, ranks: Sequence[int]) -> _Shape:
    """A number in a group of some kind and size, and which of the members these ranks are.

    Empty where no source lists the members, or one of the ranks is none.
    """
    of_group = context.trace.groups[group]
    members = {rank: place for place, rank in enumerate(of_group.ranks)}
    if not of_group.listed:
        return ()
    places = tuple(members.get(rank, -1) for rank in ranks)
    return context.kinds[group], len(members), seq, places
