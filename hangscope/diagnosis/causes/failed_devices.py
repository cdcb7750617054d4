"""What nobody finishes, and one member's device has failed: that explains it."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.wording.phrases import title_of
from hangscope.trace.model import Claim
from hangscope.trace.units import SECOND_NS

BEFORE_NS = 60 * SECOND_NS
"""An error so long before the waiting may have to do with it: a rank fills its queue first."""


def blame_failed_device(context: Context, cause: Cause) -> Cause:
    """Accuse the one member whose device has reported an error after which it does no more work.

    Only where all members stand in an operation and nothing else decides between them: nothing in
    their program explains that.
    """
    undecided = not cause.culprits or cause.confidence is Confidence.AMBIGUOUS
    if cause.verdict is not Verdict.STUCK_COLLECTIVE or not undecided:
        return cause
    since_ns = cause.began_ns - BEFORE_NS if cause.began_ns else 0
    failed: dict[int, Claim] = {}
    for claim in context.trace.claims:
        if claim.kind == "device_failed" and claim.at_ns > since_ns:
            failed |= {rank: claim for rank in claim.accused if rank in cause.involved}
    if len(failed) != 1:
        return cause
    ((rank, said),) = failed.items()
    facts = context.trace.ranks.get(rank)
    device = f"device {facts.device}" if facts is not None and facts.device else "device"
    places = context.waits.at(cause.places)
    where = title_of(context, places[0]) if places else "the operation that all have reached"
    words = Words(
        f"Rank {rank}'s {device} has probably failed: nobody finishes {where}",
        said.text,
        f"take the node of rank {rank} out of the job and have the {device} checked",
    )
    return replace(cause.accusing((rank,), Confidence.LIKELY), words=words)
