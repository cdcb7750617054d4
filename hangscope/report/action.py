"""What to do about a diagnosis, as data for schedulers and scripts."""

from __future__ import annotations

from typing import Any

from hangscope.diagnosis.model import (
    ENDED,
    MISMATCHES,
    NEVER_CAME,
    UNDECIDED,
    Confidence,
    Diagnosis,
    Finding,
    Verdict,
)

_OF_PROGRAM = MISMATCHES | NEVER_CAME | ENDED | {Verdict.DEADLOCK_CYCLE}
"""Verdicts on what the program did."""
_BETWEEN_SIDES = frozenset({*MISMATCHES, Verdict.DEADLOCK_CYCLE})
"""Those that are sure even where it is not known which side is wrong: nobody can go on."""
_SIDES = 2


def action_of(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """``{"do": ..., "why": ...}``; None for a job in which nothing is wrong.

    ``do`` is ``exclude`` (the ``hosts`` given, then restart), ``fix`` (the code at ``at``, as
    ``file:line``; starting again ends the same way), ``restart``, or ``wait`` (what is known
    supports none of these). If it is clear what is wrong and not on which side, ``at`` is a place
    of the first side and ``or_at`` has those of the others.
    """
    if not diagnosis.findings:
        return None
    first = diagnosis.findings[0]
    why = first.why or first.summary
    if first.confidence is Confidence.AMBIGUOUS:
        places = _places(first) if first.verdict in _BETWEEN_SIDES and not first.unknowns else []
        if len(places) < _SIDES:
            return {"do": "wait", "why": why}
        return {"do": "fix", "at": places[0], "or_at": places[1:], "why": why}
    if first.hosts and (first.verdict is Verdict.RANK_LOST or first.hosts_silent):
        return {"do": "exclude", "hosts": list(first.hosts), "why": why}
    places = _places(first)
    if places and first.verdict in _OF_PROGRAM:
        return {"do": "fix", "at": places[0], "why": why}
    return {"do": "wait" if first.verdict in UNDECIDED else "restart", "why": why}


def _places(finding: Finding) -> list[str]:
    """Where in the program the culprits stand, without repetitions; empty if that is not known."""
    frames = (side.stack[0] for side in finding.sides if side.stack and finding.accuses(side))
    return list(dict.fromkeys(f"{frame.filename}:{frame.line}" for frame in frames))
