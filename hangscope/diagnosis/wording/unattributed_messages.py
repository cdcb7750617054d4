"""What logs tell of no rank in particular, beside an answer that it may explain.

An exception without a rank, a process that was killed for memory: nobody is accused by it. But
where ranks wait for others that left no word, whose it was is the next thing to find out.
"""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Finding, Verdict
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.unidentified_processes import elsewhere
from hangscope.trace.model import Claim

_KINDS = frozenset({"oom", "device_error", "launcher_failure"})
_GAVE_UP = frozenset({"timeout", "dump_signal", "monitored_barrier", "barrier_timeout"})
_ABSENT = (Verdict.RANK_LOST, Verdict.MISSING_RANK)
_MOST = 4


def with_unsigned_words(context: Context, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings; those that say of nobody how he failed, with what was said of nobody."""
    texts = [_text(context, claim) for claim in _unsigned(context.trace.claims)]
    absent = any(f.verdict in _ABSENT for f in findings)
    texts += elsewhere(context)[:_MOST] if absent else ()
    if not texts:
        return findings
    return tuple(_completed(f, texts) if _is_open(context, f) else f for f in findings)


def _unsigned(claims: tuple[Claim, ...]) -> list[Claim]:
    """Statements about failures of no rank in particular, up to the first that gave up waiting:
    what comes after that came of it.
    """
    gave_up = min((c.at_ns for c in claims if c.kind in _GAVE_UP and c.at_ns), default=0)
    told = [c for c in claims if c.details.get("nobodys") or (c.kind in _KINDS and not c.accused)]
    shown = {c.text: c for c in told if not (gave_up and c.at_ns > gave_up)}
    return [*shown.values()][:_MOST]


def _text(context: Context, claim: Claim) -> str:
    sources = context.trace.sources
    file = sources[claim.source].path if 0 <= claim.source < len(sources) else ""
    name = file.replace("\\", "/").rpartition("/")[2]
    return shortened(claim.text.strip()) + (f" [{name}]" if name and len(sources) > 1 else "")


def _is_open(context: Context, finding: Finding) -> bool:
    """Whether an answer names nobody, or only ranks of whose end and place nothing is known."""
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
