"""What a log tells besides who waits for whom: on which hosts, and what began at that moment."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Finding, Verdict
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording.phrases import rank_s

_WAITS = (
    Verdict.STUCK_COLLECTIVE, Verdict.MISSING_RANK, Verdict.RANK_LOST, Verdict.INCONCLUSIVE,
    Verdict.COLLECTIVE_MISMATCH, Verdict.SHAPE_MISMATCH,
)  # fmt: skip
_MOST_HOSTS = 4


def with_clues_of_logs(context: Context, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings about waits, with the hosts of those who wait and what began just before."""
    if not context.trace.only_logs:
        return findings
    return tuple(_told(context, f) if f.verdict in _WAITS else f for f in findings)


def _told(context: Context, finding: Finding) -> Finding:
    began = next((c.text for c in context.trace.claims if c.details.get("phase")), "")
    more = [f"log: where the waiting begins: {shortened(began)}"] if began else []
    fix = finding.fix
    if began and not finding.culprits:
        fix += "; begin with what the log says right where the waiting begins"
    evidence = (*finding.evidence, *more, *_hosts(context, finding))
    return replace(finding, evidence=tuple(dict.fromkeys(evidence)), fix=fix)


def _hosts(context: Context, finding: Finding) -> tuple[str, ...]:
    """Which of the ranks concerned are on which host, where they are on several."""
    concerned = {*finding.culprits, *(rank for side in finding.sides for rank in side.ranks)}
    on: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(concerned or set(context.trace.ranks)):
        host = context.trace.ranks[rank].host if rank in context.trace.ranks else None
        if host:
            on[host].append(rank)
    if not 1 < len(on) <= _MOST_HOSTS:
        return ()
    return ("hosts: " + ", ".join(f"{host} ({rank_s(ranks)})" for host, ranks in on.items()),)
