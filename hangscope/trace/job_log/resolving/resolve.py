"""Runs the steps that resolve the evidence of a log, in order."""

from __future__ import annotations

from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.resolving.attribution import attribute_exceptions, attribute_stacks
from hangscope.trace.job_log.resolving.groups import resolve_groups
from hangscope.trace.job_log.resolving.process_ends import resolve_process_ends
from hangscope.trace.job_log.resolving.statements import (
    resolve_addresses,
    resolve_barriers,
    resolve_exception_chains,
    resolve_partly_recorded,
    resolve_shared_places,
    resolve_store_barrier,
    resolve_stuck_watchdogs,
    resolve_traps,
)
from hangscope.trace.job_log.resolving.unattributed import claim_unattributed
from hangscope.trace.job_log.rows.comparisons import resolve_comparisons, resolve_started
from hangscope.trace.model import MAX_RANK, Claim


def resolve(evidence: Evidence) -> None:
    """Complete the evidence in place."""
    _resolve_world_size(evidence)
    resolve_comparisons(evidence)
    attribute_exceptions(evidence)
    resolve_traps(evidence)
    resolve_exception_chains(evidence)
    attribute_stacks(evidence)
    resolve_process_ends(evidence)
    resolve_shared_places(evidence)
    resolve_groups(evidence)
    resolve_started(evidence)
    resolve_barriers(evidence)
    resolve_addresses(evidence)
    resolve_store_barrier(evidence)
    resolve_partly_recorded(evidence)
    resolve_stuck_watchdogs(evidence)
    claim_unattributed(evidence)
    _note_gaps(evidence)


def _resolve_world_size(evidence: Evidence) -> None:
    """The largest communicator has the world's size; an impossible size is damage."""
    if evidence.communicators.size is not None and not evidence.communicators.are_groups:
        evidence.world_size = max(evidence.world_size or 0, evidence.communicators.size)
    if (evidence.world_size or 0) > MAX_RANK + 1:
        evidence.world_size = None


def _note_gaps(evidence: Evidence) -> None:
    """Mark ranks and job as partially known if the log has missing lines or is truncated."""
    if evidence.thinned:
        for notes in evidence.ranks.values():
            notes.partly_recorded |= not (notes.operations or notes.counters or notes.has_ended)
    if evidence.cut or evidence.thinned:
        cut = Claim("other", certain=False, details={"cut": True})
        evidence.claims.append((cut, None))
