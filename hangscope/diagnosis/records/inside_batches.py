"""Where two coalesced batches diverge: the first incompatible operation inside them.

A batch's own row has a name but no sizes. NCCL implements an uneven all-gather as one broadcast per
member, a coalescing manager groups several all-reduces: one of those inner operations differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.records.agreement import aspect_of, terms
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Inside:
    """The index in the batches (0: the first operation), what differs there (as in `Mismatch`), and
    the row of each batch there, in order."""

    place: int
    aspect: str
    rows: tuple[int, ...]


def first_difference(trace: Trace, front: Frontiers, batches: tuple[int, ...]) -> Inside | None:
    """The first index at which batches differ from the first of them.

    None if one batch holds more operations than another, or if the content is not recorded: then
    the batches as a whole differ.

    Parameters
    ----------
    batches:
        Rows of the batches.
    """
    if int(front.batch_row.max(initial=-1)) < 0:
        return None
    inside = [np.flatnonzero(front.batch_row == row).tolist() for row in batches]
    if not inside[0] or len({len(rows) for rows in inside}) != 1:
        return None
    for place, rows in enumerate(zip(*inside, strict=True)):
        for row in rows[1:]:
            aspect = _aspect(trace, rows[0], row)
            if aspect is not None:
                return Inside(place, aspect, rows)
    return None


def _aspect(trace: Trace, first: int, second: int) -> str | None:
    records = trace.records
    a, b = (trace.signatures[int(records["signature"][row])] for row in (first, second))
    roots = int(records["root"][first]), int(records["root"][second])
    return aspect_of(terms(a), terms(b), roots)
