"""Which sides, between which nothing decides, stand where they had never been before.

A first evaluation or checkpoint is new to everybody, so this is no verdict: it tells the reader
where to look first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.wording.phrases import rank_s

_MOST_ACCUSED = 8
_OFTEN = 2
"""Whoever has passed its line so often is where it usually is."""


class _Stand(NamedTuple):
    """Where a rank is, and how often it had issued the same from there."""

    at: str
    passed: int


def first_times(context: Context, cause: Cause) -> list[str]:
    """The line of evidence, if some of the accused are at a new line and all others at a usual one.

    Nothing is said of ranks whose first records or stacks are lost.
    """
    accused = cause.culprits
    if (
        cause.confidence is not Confidence.AMBIGUOUS
        or not 1 < len(accused) <= _MOST_ACCUSED
        or context.hidden.intersection(accused)
    ):
        return []
    stands = {rank: _stand(context, cause, rank) for rank in accused}
    found = {rank: stand for rank, stand in stands.items() if stand is not None}
    new = [rank for rank, stand in found.items() if not stand.passed]
    usual = [rank for rank, stand in found.items() if stand.passed >= _OFTEN]
    if not new or not usual or len(new) + len(usual) < len(accused):
        return []
    return [
        f"{rank_s(new)} had never come to {found[new[0]].at} before; {rank_s(usual)} had come "
        f"{min(found[rank].passed for rank in usual)} times or more to {found[usual[0]].at}"
    ]


def _stand(context: Context, cause: Cause, rank: int) -> _Stand | None:
    """What the rank issued where it differs from others, or what it waits in; None if unknown."""
    own = context.streams.of(rank)
    here = context.front.unfinished[own.rows]
    if cause.mismatch is not None:
        here = own.rows == context.row_of(cause.mismatch.group, rank, cause.mismatch.seq)
    at = next(iter(np.flatnonzero(here)), None)
    line = where(innermost(context.stack(int(own.rows[at])))) if at is not None else ""
    return _Stand(line, int((own.what[:at] == own.what[at]).sum())) if line else None
