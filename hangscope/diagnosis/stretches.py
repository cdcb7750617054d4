"""Which rank of a circle did not do what it did before, since all of them were last together.

Training repeats itself: from one collective of all suspects to the next a rank issues what it
issued after an earlier one, from the same lines, and stops where it has to wait. One that has
issued anything else has left the pattern, and two steps are enough to see it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.past import Issued, Past, past_of
from hangscope.trace.model import NONE

_MOST_RANKS = 64
"""In a larger circle no single rank is to blame."""


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
    earlier, newest = _stretches(past_of(context, rank, suspects))
    if not newest or newest[-1][-1] == NONE:
        return None
    if not any(newest[-1] in stretch for stretch in earlier):
        return None
    if any(stretch[: len(newest)] == newest for stretch in earlier):
        return False
    return True if any(stretch[:1] == newest[:1] for stretch in earlier) else None


def _stretches(past: Past) -> tuple[list[list[Issued]], list[Issued]]:
    """What was issued between collectives of all suspects: earlier stretches, the newest.

    The newest ends with the rank's oldest unfinished operation. What was issued before the oldest
    such collective is a stretch where its beginning is on record.
    """
    if not past.meetings:
        return [], []
    starts = [-1, *past.meetings] if past.whole else past.meetings
    earlier = [past.issued[a + 1 : b + 1] for a, b in pairwise(starts)]
    return earlier, past.issued[past.meetings[-1] + 1 :]
