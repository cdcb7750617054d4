"""Which members have destroyed a group, so that they come to nothing in it any more."""

from __future__ import annotations

from hangscope.trace.model import Trace


def has_left_group(trace: Trace, rank: int, group: int) -> bool:
    """Whether a rank is on record to have destroyed this group (an index into `Trace.groups`)."""
    members = trace.members
    row = (members["rank"] == rank) & (members["group"] == group)
    return bool((members["left_ns"][row] > 0).any())
