"""What the monitor concluded while the job ran, if less than that is left of the job.

The monitor had seen the processes and all of their rings. For a job that was killed right
afterwards, or that lost files, its journal may hold more than everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import UNDECIDED, Confidence, Finding, Verdict
from hangscope.diagnosis.observability import recorded_ranks
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.records.coverage import rank_bounds
from hangscope.trace.model import Claim
from hangscope.trace.verdict_codec import OWN_VERDICT

_NOTHING = (Verdict.HEALTHY, Verdict.INCONCLUSIVE)


def with_monitor_verdict(context: Context, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, preceded by the monitor's verdict if that rests on more evidence."""
    undecided = all(finding.verdict in UNDECIDED for finding in findings)
    lost = frozenset() if undecided else _without_record(context)
    said = _said(context) if undecided or lost else None
    if said is None:
        return tuple(findings)
    if undecided:
        stood = any(finding.verdict is Verdict.QUIESCENT for finding in findings)
        return (said, *findings) if said.culprits or not stood else tuple(findings)
    found = findings[0]
    if lost.issuperset(found.culprits) or set(found.culprits) != set(said.culprits):
        # A rank whose ring the monitor had read is not at fault for the ring's being gone now.
        return (replace(said, evidence=found.evidence),)
    return tuple(findings)


def overcome(context: Context) -> list[str]:
    """A note of what the monitor said before the job went on, if it did: all ranks of it."""
    issued_ns, bounds = context.trace.records["created_ns"], rank_bounds(context.trace)
    moved_ns = min((int(issued_ns[a:b].max()) for a, b in bounds.values()), default=0)
    said = [claim for claim in _own(context) if claim.at_ns < moved_ns and claim.text]
    if not said:
        return []
    first = min(said, key=lambda claim: (_verdict(claim) in _NOTHING, claim.at_ns))
    return [f"HangScope said while the job ran: {first.text}; the job has gone on since"]


def _own(context: Context) -> list[Claim]:
    """The monitors' verdicts while the job ran."""
    return [c for c in context.trace.claims if c.kind == OWN_VERDICT and c.at_ns]


def _without_record(context: Context) -> frozenset[int]:
    """Ranks without any remaining record of their operations."""
    trace = context.trace
    return frozenset({*trace.ranks, *trace.missing_ranks}) - recorded_ranks(trace)


def _said(context: Context) -> Finding | None:
    """The monitor's first verdict since the job stood still; None if the job ended cleanly.

    Later verdicts may be about consequences.
    """
    trace = context.trace
    said = [claim for claim in _own(context) if claim.at_ns >= context.newest_ns]
    if (trace.live and trace.current) or not said:
        return None
    first = min(said, key=lambda claim: claim.at_ns)
    verdict = _verdict(first)
    if verdict in _NOTHING:
        return None
    known = {*context.processes, *trace.missing_ranks}
    culprits = tuple(r for r in first.details.culprits if r in known)
    others = [process for rank, process in context.processes.items() if rank not in culprits]
    if others and all(process.end is End.CLEAN for process in others):
        return None
    ambiguous = first.details.confidence == Confidence.AMBIGUOUS.value
    return Finding(
        verdict,
        culprits,
        tuple(sorted(process.rank for process in others)),
        Confidence.AMBIGUOUS if ambiguous else Confidence.LIKELY,
        first.text,
        "HangScope said so while the job ran; what is left of the job tells less",
        "read its report in the job's log, after [hangscope]: it has the lines and the stacks",
        "D19",
        unknowns=("what the monitor had seen when it said so",),
    )


def _verdict(claim: Claim) -> Verdict:
    """Defensive: a journal may hold anything."""
    try:
        return Verdict(claim.details.verdict)
    except ValueError:
        return Verdict.INCONCLUSIVE
