"""Runs the steps that resolve what an attempt has shown, in order."""

from __future__ import annotations

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.resolving import exceptions, statements
from hangscope.trace.job_log.resolving.ends import resolve_ends
from hangscope.trace.job_log.resolving.groups import resolve_groups
from hangscope.trace.job_log.rows.comparisons import resolve_comparisons, resolve_started
from hangscope.trace.job_log.rows.devices import Communicators
from hangscope.trace.model import MAX_RANK, Claim

_STEPS = (
    resolve_comparisons,
    exceptions.attribute_exceptions,
    statements.resolve_traps,
    exceptions.resolve_chains,
    exceptions.attribute_stacks,
    resolve_ends,
    statements.resolve_shared_places,
    resolve_groups,
    resolve_started,
    statements.resolve_barriers,
    statements.resolve_addresses,
    statements.resolve_store_barrier,
    statements.resolve_partly_recorded,
    exceptions.claim_unattributed,
)


def resolve(attempt: Attempt) -> None:
    """Complete it in place."""
    largest = attempt.part(Communicators)
    if largest.size and not largest.are_groups:
        attempt.world_size = max(attempt.world_size or 0, largest.size)
    if (attempt.world_size or 0) > MAX_RANK + 1:
        attempt.world_size = None  # damage
    for step in _STEPS:
        step(attempt)
    if attempt.thinned:
        for notes in attempt.ranks.values():
            notes.partly_recorded |= not (notes.operations or notes.counters or notes.has_ended)
    if attempt.cut or attempt.thinned:
        attempt.infer(Claim("other", certain=False, details={"cut": True}))
