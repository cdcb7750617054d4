"""Merges the findings of one mistake that shows in several sibling groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangscope.diagnosis.model import Confidence, Finding
from hangscope.diagnosis.wording.phrases import rank_s

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
