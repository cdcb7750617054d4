"""Ranks whose end a log reports only as an exit status, without a word on what led to it."""

from __future__ import annotations

from hangscope.trace.model import Trace


def known_by_status(trace: Trace, rank: int) -> bool:
    """Whether a log gives only the status of a rank's end."""
    facts = trace.ranks[rank]
    bare = facts.exception is None and facts.exit is not None and facts.exit.kind == "code"
    return trace.only_logs and bare


def may_have_given_up(trace: Trace) -> frozenset[int]:
    """Ranks that may be the unnamed one that timed out according to the log.

    Programs print what they catch without their rank, and exit with a status.
    """
    if not any(claim.kind == "timeout" and claim.reporter is None for claim in trace.claims):
        return frozenset()
    return frozenset(rank for rank in trace.ranks if known_by_status(trace, rank))
