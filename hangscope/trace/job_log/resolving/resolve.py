"""The steps by which the evidence of a log is completed, in their order."""

from __future__ import annotations

from hangscope.trace.job_log.readers.desync import settle_comparisons
from hangscope.trace.job_log.readers.evidence import Evidence
from hangscope.trace.job_log.resolving.attribution import settle_stacks, settle_writers
from hangscope.trace.job_log.resolving.groups import settle_groups
from hangscope.trace.job_log.resolving.process_ends import settle_endings
from hangscope.trace.job_log.resolving.statements import (
    settle_addresses,
    settle_barriers,
    settle_chains,
    settle_half_told,
    settle_shared_places,
    settle_store_barrier,
    settle_stuck_watchdogs,
    settle_traps,
)
from hangscope.trace.job_log.resolving.unattributed import settle_unsigned
from hangscope.trace.model import MAX_RANK, Claim


def settle(evidence: Evidence) -> None:
    """Complete the evidence in place."""
    _settle_world_size(evidence)
    settle_comparisons(evidence)
    settle_writers(evidence)
    settle_traps(evidence)
    settle_chains(evidence)
    settle_stacks(evidence)
    settle_endings(evidence)
    settle_shared_places(evidence)
    settle_groups(evidence)
    settle_barriers(evidence)
    settle_addresses(evidence)
    settle_store_barrier(evidence)
    settle_half_told(evidence)
    settle_stuck_watchdogs(evidence)
    settle_unsigned(evidence)
    _settle_gaps(evidence)


def _settle_world_size(evidence: Evidence) -> None:
    """The largest communicator has as many members as the job; more than any job is damage."""
    if evidence.comm_size is not None and not evidence.comms_are_groups:
        evidence.world_size = max(evidence.world_size or 0, evidence.comm_size)
    if (evidence.world_size or 0) > MAX_RANK + 1:
        evidence.world_size = None


def _settle_gaps(evidence: Evidence) -> None:
    """What a log with lines missing does not tell: of whom nothing is left, and that it is cut."""
    if evidence.thinned:
        for notes in evidence.ranks.values():
            notes.half_told |= not (notes.operations or notes.counters or notes.has_ended)
    if evidence.cut or evidence.thinned:
        cut = Claim("other", certain=False, details={"cut": True})
        evidence.claims.append((cut, None))
