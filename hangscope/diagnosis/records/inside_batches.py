"""Where two coalesced batches part: the first operation inside them that cannot go together.

A batch's own row carries a name and no sizes. NCCL spells an uneven all-gather out as one broadcast
for each member, a manager of several all-reduces as these: what differs is one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.records.agreement import aspect_of, terms
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Inside:
    """The place in the batches (0: the first operation), what differs there (as in `Mismatch`), and
    the record of each batch there, in their order."""

    place: int
    aspect: str
    rows: tuple[int, ...]


def first_difference(trace: Trace, front: Frontiers, batches: tuple[int, ...]) -> Inside | None:
    """The first place at which batches differ from the first of them.

    None where one of them holds more operations than another, or what is inside is not on record:
    then the batches as a whole are what differs.

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
