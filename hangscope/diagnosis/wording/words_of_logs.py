"""Findings in the words of a reader of logs, and what logs say of unknown ranks.

An exception without a rank, or a process killed for memory, accuses nobody. But if ranks wait for
others that left no message, whose it was is the next thing to find out.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Finding, Verdict
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.stack_summary import elsewhere
from hangscope.trace.model import Claim

_WORDS = (
    (re.compile(r"^(ranks? [\d, \u2013]+) left no dump$"), r"nothing is heard of \1"),
    (re.compile(r"^\d+ of \d+ ranks left no dump$"), "most ranks of the group are not heard of"),
    (re.compile(r"^no dump of (ranks? [\d, \u2013]+)$"), r"nothing is heard of \1"),
    (re.compile(r"^(rank \d+): no dump and no log$"), r"\1: does not appear in the log"),
    (
        re.compile(r"^the group's members are not listed; the ranks with dumps stand in for them$"),
        "who belongs to the group is not told: the ranks that the log mentions stand in for them",
    ),
    (re.compile(r"\bleft no dump\b"), "left no line"),
)


def in_words_of_logs(context: Context, finding: Finding) -> Finding:
    """The finding without words of dumps, if there are only logs."""
    if not context.trace.only_logs:
        return finding
    unknowns = tuple(dict.fromkeys(map(_said, finding.unknowns)))
    return replace(
        finding,
        why=_said(finding.why),
        evidence=tuple(map(_said, finding.evidence)),
        unknowns=unknowns,
    )


def _said(text: str) -> str:
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text


_KINDS = frozenset({"oom", "device_error", "launcher_failure"})
_HARDWARE = frozenset({"network_error", "device_error"})
_GAVE_UP = frozenset({"timeout", "dump_signal", "monitored_barrier", "barrier_timeout"})
_ABSENT = (Verdict.RANK_LOST, Verdict.MISSING_RANK)
_MOST = 4


def with_unattributed_messages(
    context: Context, findings: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """The findings; those that do not say how a rank failed get the unattributed messages."""
    texts = [_text(context, claim) for claim in _unattributed(context.trace.claims)]
    absent = any(f.verdict in _ABSENT for f in findings)
    texts += elsewhere(context)[:_MOST] if absent else ()
    if texts:
        findings = tuple(_completed(f, texts) if _is_open(context, f) else f for f in findings)
    troubles = _troubles(context)
    if troubles:
        findings = tuple(_explained(f, troubles) for f in findings)
    return findings


def _troubles(context: Context) -> list[str]:
    """What logs say of connections and devices up to the first timeout."""
    claims = context.trace.claims
    found = [c for c in claims if c.kind in _HARDWARE and not c.details.get("after_timeout")]
    return [*dict.fromkeys(_text(context, c) for c in _up_to_first_timeout(claims, found))][:_MOST]


def _explained(finding: Finding, troubles: list[str]) -> Finding:
    """A collective that nobody finishes, with what may be why."""
    if finding.verdict is not Verdict.STUCK_COLLECTIVE or finding.culprits:
        return finding
    new = [text for text in troubles if not any(text in line for line in finding.evidence)]
    evidence = (*finding.evidence, *(f"log: {text}" for text in new))
    return replace(finding, evidence=evidence, fix=f"{finding.fix}; begin with this: {troubles[0]}")


def _unattributed(claims: tuple[Claim, ...]) -> list[Claim]:
    """Statements about failures of an unknown rank, up to the first timeout: what comes after that
    is its consequence."""
    found = [
        c for c in claims if c.details.get("unattributed") or (c.kind in _KINDS and not c.accused)
    ]
    shown = {c.text: c for c in _up_to_first_timeout(claims, found)}
    return [*shown.values()][:_MOST]


def _up_to_first_timeout(claims: tuple[Claim, ...], found: list[Claim]) -> list[Claim]:
    gave_up = min((c.at_ns for c in claims if c.kind in _GAVE_UP and c.at_ns), default=0)
    return [c for c in found if not (gave_up and c.at_ns > gave_up)]


def _text(context: Context, claim: Claim) -> str:
    sources = context.trace.sources
    file = sources[claim.source].path if 0 <= claim.source < len(sources) else ""
    name = file.replace("\\", "/").rpartition("/")[2]
    return shortened(claim.text.strip()) + (f" [{name}]" if name and len(sources) > 1 else "")


def _is_open(context: Context, finding: Finding) -> bool:
    """Whether an answer names nobody, or only ranks whose end and place are unknown."""
    if finding.verdict is Verdict.INCONCLUSIVE:
        return True
    if finding.verdict not in _ABSENT:
        return False
    known = [context.trace.ranks[r] for r in finding.culprits if r in context.trace.ranks]
    return not any(f.exit or f.exception or f.threads or f.phases or f.alive for f in known)


def _completed(finding: Finding, texts: list[str]) -> Finding:
    new = [text for text in texts if not any(text in line for line in finding.evidence)]
    evidence = (*(f"log, of an unknown rank: {text}" for text in new), *finding.evidence)
    if finding.culprits:
        who = rank_s(finding.culprits)
        fix = f"{finding.fix}; check whether this is about {who}: {texts[0]}"
    else:
        fix = f"find out which rank this is about: {texts[0]}; then, {finding.fix}"
    return replace(finding, evidence=evidence, fix=fix)
