"""What a rank has issued until it stood still, and where it was together with others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.records.turns import in_turn

_NEWEST = 4096
"""So many operations of a rank are looked at."""

Issued = tuple[int, str, int, int]
"""Group, operation (interchangeable names are one), partner and stack."""


@dataclass(frozen=True, slots=True)
class Past:
    """A rank's operations in the order of issue.

    Attributes
    ----------
    issued:
        Up to the oldest unfinished one, which is the last; up to the newest where none is.
    meetings:
        Places in ``issued`` of the finished collectives of groups that all suspects are in.
    whole:
        Whether it goes back to the rank's first operation.
    """

    issued: list[Issued]
    meetings: list[int]
    whole: bool
    begun: frozenset[int]
    """Places in ``issued`` of what a thread issued first, while another one had before it."""


def past_of(context: Context, rank: int, suspects: Collection[int]) -> Past:
    """What a rank issued before it stood still; ``suspects``: whom it was together with."""
    trace, front = context.trace, context.front
    low, high = context.bounds.get(rank, (0, 0))
    unfinished = np.flatnonzero(front.unfinished[low:high])
    end = low + int(unfinished[0]) + 1 if len(unfinished) else high
    first = max(low, end - _NEWEST)
    beside = in_turn(trace.records[first:end])
    part = trace.records[first:end][beside]
    wanted = set(suspects)
    common = [i for i, g in enumerate(trace.groups) if wanted <= set(g.ranks)]
    together = np.isin(part["group"], common) & front.collective[first:end][beside]
    if len(unfinished):
        together[-1:] = False
    _, firsts = np.unique(part["thread"], return_index=True)
    facts = trace.ranks.get(rank)
    families = context.families
    return Past(
        list(
            zip(
                part["group"].tolist(),
                [families[s] for s in part["signature"].tolist()],
                part["peer"].tolist(),
                part["stack"].tolist(),
                strict=True,
            )
        ),
        np.flatnonzero(together).tolist(),
        facts is not None and facts.oldest_record_id <= 1 and first == low,
        frozenset(firsts.tolist()) - {0},
    )
