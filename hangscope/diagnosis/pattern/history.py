"""What a rank issued before it stood still, and when it was last in step with others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.records.kinds import in_issue_order
from hangscope.trace.model import NONE, Records

_NEWEST = 4096
"""Limit on the operations of a rank that are examined."""

Issued = tuple[int, str, int, int]
"""Group, operation (interchangeable names are one), partner and stack."""


@dataclass(frozen=True, slots=True)
class History:
    """A rank's operations in order of issue."""

    issued: list[Issued]
    """Up to the oldest unfinished operation, which comes last; up to the newest if none is
    unfinished."""
    meetings: list[int]
    """Indices in ``issued`` of the finished collectives of groups that include all suspects."""
    whole: bool
    """Whether it goes back to the rank's first operation."""
    behind: list[Issued]
    """What it had issued behind the oldest unfinished operation."""
    begun: frozenset[int]
    """Indices in ``issued`` of each thread's first operation, except the rank's very first."""


def history_of(context: Context, rank: int, suspects: Collection[int]) -> History:
    """What a rank issued before it stood still; ``suspects``: the ranks it was in step with."""
    trace, front = context.trace, context.front
    low, high = context.bounds.get(rank, (0, 0))
    stood = _stood_in(context, rank)
    end = high if stood == NONE else stood + 1
    first = max(low, end - _NEWEST)
    beside = in_issue_order(trace.records[first:end])
    part = trace.records[first:end][beside]
    wanted = set(suspects)
    common = [i for i, g in enumerate(trace.groups) if wanted <= set(g.ranks)]
    together = np.isin(part["group"], common) & front.collective[first:end][beside]
    if stood != NONE:
        together[-1:] = False
    _, firsts = np.unique(part["thread"], return_index=True)
    facts = trace.ranks.get(rank)
    later = trace.records[end:high]
    return History(
        _issued(context, part),
        np.flatnonzero(together).tolist(),
        facts is not None and facts.oldest_record_id <= 1 and first == low,
        _issued(context, later[np.isin(later["thread"], part["thread"])][:_NEWEST]),
        frozenset(firsts.tolist()) - {0},
    )


def _issued(context: Context, part: Records) -> list[Issued]:
    families = context.families
    return list(
        zip(
            part["group"].tolist(),
            [families[s] for s in part["signature"].tolist()],
            part["peer"].tolist(),
            part["stack"].tolist(),
            strict=True,
        )
    )


def _stood_in(context: Context, rank: int) -> int:
    """The rank's oldest unfinished record, by its own state or its backend's counter."""
    low, high = context.bounds.get(rank, (0, 0))
    rows = [low + at for at in np.flatnonzero(context.front.unfinished[low:high])[:1].tolist()]
    places = context.waits.of(rank)
    rows += [context.row_of(p.group, rank, p.seq) for p in places if p.counted]
    return min((row for row in rows if row != NONE), default=NONE)
