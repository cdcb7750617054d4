"""Turns a cause into a finding: summary, mechanism, fix, evidence and sides."""

from __future__ import annotations

from typing import NamedTuple

from hangscope.diagnosis.cause import Cause, shown_place
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Finding, GroupRef
from hangscope.diagnosis.wording.advice import advice
from hangscope.diagnosis.wording.evidence import evidence
from hangscope.diagnosis.wording.sides import sides_of
from hangscope.diagnosis.wording.summaries import sentences
from hangscope.diagnosis.wording.words_of_logs import in_words_of_logs


class _Subject(NamedTuple):
    """The operation a finding is about, if any."""

    group: GroupRef | None = None
    seq: int | None = None
    op: str | None = None


def to_finding(context: Context, cause: Cause) -> Finding:
    """Turn one cause into a finding."""
    place = shown_place(context, cause)
    words = sentences(context, cause, place)
    sides = sides_of(context, cause, place)
    todo = advice(context, cause, place, sides)
    subject = _subject(context, cause, place)
    finding = Finding(
        verdict=cause.verdict,
        culprits=cause.culprits,
        victims=tuple(sorted(cause.victims - set(cause.culprits))),
        confidence=cause.confidence,
        summary=words.summary,
        why=words.why,
        fix=todo.fix,
        playbook=todo.playbook,
        group=subject.group,
        seq=subject.seq,
        op=subject.op,
        sides=sides,
        evidence=(*evidence(context, cause, place), *cause.evidence),
        unknowns=tuple(cause.unknowns),
        began_ns=cause.began_ns,
    )
    return in_words_of_logs(context, finding)


def _subject(context: Context, cause: Cause, place: Place | None) -> _Subject:
    found = cause.mismatch
    if found is not None:
        signature = context.signature(found.parts[0].row)
        op = signature.op if signature else None
        return _Subject(context.group_ref(found.group), found.seq, op)
    if place is None:
        return _Subject()
    group = context.group_ref(place.group, place.members)
    return _Subject(group, None if place.phase else place.seq, context.place_op(place))
