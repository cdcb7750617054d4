"""What to do about a diagnosis, as data for schedulers and scripts."""

from __future__ import annotations

from typing import Any

from hangscope.diagnosis.model import MISMATCHES, Confidence, Diagnosis, Finding, Verdict

_ELSEWHERE = frozenset({*MISMATCHES, Verdict.MISSING_RANK, Verdict.DEADLOCK_CYCLE,
                        Verdict.P2P_UNMATCHED, Verdict.RANK_EXITED})  # fmt: skip
"""Verdicts on what the program did."""


def action_of(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """``{"do": ..., "why": ...}``; None for a job in which nothing is wrong.

    ``do`` is ``exclude`` (the ``hosts`` given, then restart), ``fix`` (the code at ``at``, as
    ``file:line``; starting again ends the same way), ``restart``, or ``wait`` (what is known
    supports none of these).
    """
    if not diagnosis.findings:
        return None
    first = diagnosis.findings[0]
    why = first.why or first.summary
    if first.confidence is Confidence.AMBIGUOUS:
        return {"do": "wait", "why": why}
    if first.hosts and (first.verdict is Verdict.RANK_LOST or first.hosts_silent):
        return {"do": "exclude", "hosts": list(first.hosts), "why": why}
    at = _place(first)
    if at and (first.verdict in _ELSEWHERE or first.verdict is Verdict.RANK_CRASHED):
        return {"do": "fix", "at": at, "why": why}
    quiet = (Verdict.INCONCLUSIVE, Verdict.QUIESCENT)
    return {"do": "wait" if first.verdict in quiet else "restart", "why": why}


def _place(finding: Finding) -> str:
    """Where in the program the culprits stand; empty if that is not known."""
    for side in finding.sides:
        if side.stack and finding.accuses(side):
            frame = side.stack[0]
            return f"{frame.filename}:{frame.line}"
    return ""
