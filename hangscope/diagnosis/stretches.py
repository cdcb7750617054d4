"""Which rank of a circle did not do what it did before, since all of them were last together.

Training repeats itself: from one collective of all suspects to the next a rank issues what it
issued after an earlier one, from the same lines, and stops where it has to wait. One that has
issued anything else has left the pattern, and two steps are enough to see it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.agreement import family
from hangscope.diagnosis.context import Context
from hangscope.trace.model import NONE

_NEWEST = 4096
"""So many operations of a rank are looked at."""
_MOST_RANKS = 64
"""In a larger circle no single rank is to blame."""

_Step = tuple[int, str, int, int]
"""Group, operation, partner and stack."""


def strayed(context: Context, suspects: Iterable[int]) -> tuple[int, ...]:
    """The one of ``suspects`` that did something else than before, where all others did not.

    Empty where several strayed, where a rank's past says nothing, and where somebody waits at a
    line it has never been at before: then something new began for all of them.
    """
    ranks = sorted(set(suspects))
    if not 1 < len(ranks) <= _MOST_RANKS:
        return ()
    found = {rank: _strayed(context, rank, ranks) for rank in ranks}
    odd = tuple(rank for rank, is_odd in found.items() if is_odd)
    return odd if len(odd) == 1 and None not in found.values() else ()


def _strayed(context: Context, rank: int, suspects: list[int]) -> bool | None:
    """Whether the rank's newest stretch is unlike the beginning of all its earlier ones.

    None where no earlier one begins with the same operation, or the rank waits at a new line.
    """
    earlier, newest = _stretches(context, rank, suspects)
    if not newest or newest[-1][-1] == NONE:
        return None
    if not any(newest[-1] in stretch for stretch in earlier):
        return None
    if any(stretch[: len(newest)] == newest for stretch in earlier):
        return False
    return True if any(stretch[:1] == newest[:1] for stretch in earlier) else None


def _stretches(
    context: Context, rank: int, suspects: list[int]
) -> tuple[list[list[_Step]], list[_Step]]:
    """What the rank issued between collectives of all suspects: earlier stretches, the newest.

    The newest ends with the rank's oldest unfinished operation. What was issued before the oldest
    such collective is a stretch where its beginning is on record.
    """
    low, high = context.bounds.get(rank, (0, 0))
    low = max(low, high - _NEWEST)
    part = context.trace.records[low:high]
    unfinished = np.flatnonzero(context.front.unfinished[low:high])
    part = part[: int(unfinished[0]) + 1] if len(unfinished) else part
    ops = [family(s.op) for s in context.trace.signatures]
    steps: list[_Step] = list(
        zip(
            part["group"].tolist(),
            (ops[s] for s in part["signature"].tolist()),
            part["peer"].tolist(),
            part["stack"].tolist(),
            strict=True,
        )
    )
    wanted = set(suspects)
    common = [i for i, g in enumerate(context.trace.groups) if wanted <= set(g.ranks)]
    shared = np.isin(part["group"], common) & context.front.collective[low : low + len(part)]
    if len(unfinished):
        shared[-1:] = False
    meetings = np.flatnonzero(shared).tolist()
    if not meetings:
        return [], []
    facts = context.trace.ranks.get(rank)
    whole = facts is not None and facts.oldest_record_id <= 1 and low == context.bounds[rank][0]
    starts = [-1, *meetings] if whole else meetings
    earlier = [steps[a + 1 : b + 1] for a, b in pairwise(starts)]
    return earlier, steps[meetings[-1] + 1 :]
