"""What a log tells besides who waits for whom: on which hosts, for how long at most, what began at
that moment, and what it lacks."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.model import Finding, Verdict
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording import playbook
from hangscope.diagnosis.wording.log_lacks import what_to_collect
from hangscope.diagnosis.wording.phrases import rank_s

_WAITS = (
    Verdict.STUCK_COLLECTIVE, Verdict.MISSING_RANK, Verdict.RANK_LOST, Verdict.INCONCLUSIVE,
    Verdict.COLLECTIVE_MISMATCH, Verdict.SHAPE_MISMATCH,
)  # fmt: skip
_MOST_HOSTS = 4
_MOST_LIMITS = 4
_TIMEOUT_MS = re.compile(
    r"(?:Timeout\(ms\)=|Timed out waiting |monitoredBarrier (?:in|after) |wait timeout after )"
    r"(\d{3,12})"
)


def with_clues_of_logs(context: Context, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings about waits, with the hosts of those who wait and what began just before."""
    if not context.trace.only_logs:
        return findings
    return tuple(_told(context, f) if f.verdict in _WAITS else f for f in findings)


def _told(context: Context, finding: Finding) -> Finding:
    began = next((c.text for c in context.trace.claims if c.details.get("phase")), "")
    more = [f"log: where the waiting begins: {shortened(began)}"] if began else []
    fix = finding.fix
    if fix == playbook.by_verdict(Verdict.INCONCLUSIVE).fix:
        fix = what_to_collect(context, finding)
    if began and not finding.culprits:
        fix += "; begin with what the log says right where the waiting begins"
    evidence = (*finding.evidence, *_timeouts(context), *more, *_hosts(context, finding))
    return replace(finding, evidence=tuple(dict.fromkeys(evidence)), fix=fix)


def _timeouts(context: Context) -> tuple[str, ...]:
    """After how long ranks give up, where the log states it."""
    limits_ms = {int(limit) for limit in context.trace.records["timeout_ms"] if limit > 0}
    for claim in context.trace.claims:
        limits_ms |= {int(ms) for ms in _TIMEOUT_MS.findall(claim.text)}
    limits = sorted(limits_ms)[: _MOST_LIMITS + 1]
    if not 0 < len(limits) <= _MOST_LIMITS:
        return ()
    times = " or ".join(dict.fromkeys(lasting(limit / 1000) for limit in limits))
    return (f"timeout: the log states {times}",)


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
