"""What the monitor had concluded while the job ran, where less than that is left of it.

It had seen the processes and all of their rings. Of a job that was killed at once afterwards, or
of which files are missing, its journal may tell more than everything else.
"""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.processes.host import End
from hangscope.trace.model import Claim
from hangscope.trace.witnesses.journal import OWN_VERDICT

_NOTHING = (Verdict.HEALTHY, Verdict.INCONCLUSIVE)


def said_live(context: Context) -> Finding | None:
    """The monitor's first verdict since the job stood still; None where it ended in order.

    Later ones may be about what followed from that.
    """
    trace = context.trace
    said = [
        claim
        for claim in trace.claims
        if claim.kind == OWN_VERDICT and claim.at_ns and claim.at_ns >= context.newest_ns
    ]
    if trace.live or not said:
        return None
    first = min(said, key=lambda claim: claim.at_ns)
    verdict = _verdict(first)
    if verdict in _NOTHING:
        return None
    known = {*context.hosts, *trace.missing_ranks}
    culprits = tuple(r for r in first.details.get("culprits", ()) if r in known)
    others = [host for rank, host in context.hosts.items() if rank not in culprits]
    if all(host.end is End.CLEAN for host in others):
        return None
    ambiguous = first.details.get("confidence") == Confidence.AMBIGUOUS.value
    return Finding(
        verdict,
        culprits,
        tuple(sorted(host.rank for host in others)),
        Confidence.AMBIGUOUS if ambiguous else Confidence.LIKELY,
        first.text,
        "HangScope said so while the job ran; what is left of the job tells less",
        "read its report in the job's log, behind [hangscope]: it has the lines and the stacks",
        "D19",
        unknowns=("what the monitor had seen when it said so",),
    )


def _verdict(claim: Claim) -> Verdict:
    """A journal may hold anything."""
    try:
        return Verdict(claim.details.get("verdict"))
    except ValueError:
        return Verdict.INCONCLUSIVE
