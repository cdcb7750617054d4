"""Merges causes, and their findings, that show the same mistake in several sibling groups.

A data-parallel replica or a pipeline stage is a row of ranks, each in its own group with its
counterparts. What the whole row left out shows up once in each of these groups, at the same number.
None of these causes explains another, yet it is one mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangscope.diagnosis.cause import Cause, shown_place
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.model import NONE

_Shape = tuple[object, ...]


def sibling_causes(context: Context, causes: Sequence[Cause]) -> list[list[Cause]]:
    """The causes in order, with equally shaped ones that name different ranks combined."""
    shapes = _Shapes(context)
    merged: list[list[Cause]] = []
    of_shape: dict[_Shape, tuple[list[Cause], set[int]]] = {}
    for cause in causes:
        shape = shapes.of(cause)
        known, named = of_shape.get(shape, ([], set()))
        if shape and known and named.isdisjoint(cause.culprits):
            known.append(cause)
            named.update(cause.culprits)
            continue
        merged.append([cause])
        of_shape[shape] = merged[-1], set(cause.culprits)
    return merged


class _Shapes:
    """What causes of one mistake have in common."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._places: dict[int, dict[int, int]] = {}
        """Per group the index of each member; cached because lists may hold thousands of ranks."""

    def of(self, cause: Cause) -> _Shape:
        """Kind of group, number, accused members and operation; empty if unknown."""
        if not cause.culprits or cause.crossed or cause.conflict:
            return ()
        named = cause.verdict, cause.confidence is Confidence.AMBIGUOUS, cause.issued_extra
        found = cause.mismatch
        if found is not None:
            issued = tuple(self._op(part.row) for part in found.parts)
            place = self._position(found.group, found.seq, cause.culprits)
            return (*named, found.aspect, issued, *place) if place else ()
        if cause.verdict is Verdict.DEADLOCK_CYCLE:
            return (*named, *self._of_cycle(cause))
        shown = shown_place(self._context, cause)
        if shown is None or shown.group < 0:
            return ()
        position = self._position(shown.group, shown.seq, cause.culprits)
        return (*named, shown.p2p, self._op(shown.row), *position) if position else ()

    def _of_cycle(self, cause: Cause) -> _Shape:
        """The places of a cycle; unique to it if one of them has no group."""
        here = self._context.waits.at(cause.places)
        if any(place.group < 0 for place in here):
            return (cause.places,)
        edges = {
            (p.p2p, self._op(p.row), *self._position(p.group, 0, cause.culprits)) for p in here
        }
        return (frozenset(edges),)

    def _op(self, row: int) -> str:
        """The operation of a record; empty if not recorded."""
        signature = self._context.trace.records["signature"][row] if row >= 0 else NONE
        return self._context.families[signature] if signature >= 0 else ""

    def _position(self, group: int, seq: int, ranks: Sequence[int]) -> _Shape:
        """A number in a group of some kind and size, and the indices of these members.

        Empty if no source lists the members.
        """
        of_group = self._context.trace.groups[group]
        if not of_group.listed:
            return ()
        members = self._places.get(group)
        if members is None:
            members = {rank: place for place, rank in enumerate(of_group.ranks)}
            self._places[group] = members
        places = tuple(members.get(rank, NONE) for rank in ranks)
        return self._context.kinds[group], len(members), seq, places


_SHOWN = 7


def merged_finding(merged: Sequence[Finding]) -> Finding:
    """The first of these findings, with the others' culprits added and their summaries as
    evidence."""
    first, *others = merged
    if not others:
        return first
    more = sorted({rank for finding in others for rank in finding.culprits})
    culprits = tuple(sorted({*first.culprits, *more}))
    victims = {rank for finding in merged for rank in finding.victims}
    sure = all(finding.confidence is first.confidence for finding in merged)
    groups = "a sibling group" if len(others) == 1 else f"{len(others)} sibling groups"
    unknowns = dict.fromkeys(what for finding in merged for what in finding.unknowns)
    return replace(
        first,
        culprits=culprits,
        victims=tuple(sorted(victims.difference(culprits))),
        confidence=first.confidence if sure else Confidence.LIKELY,
        summary=f"{first.summary}; likewise {rank_s(more)} in {groups}",
        evidence=(*first.evidence, *(finding.summary for finding in others[:_SHOWN])),
        unknowns=tuple(unknowns),
        began_ns=min((f.began_ns for f in merged if f.began_ns), default=0),
    )
