"""Which rank of a cycle deviated from its usual steps since all ranks were last in step.

Training repeats itself: from one collective of all suspects to the next, a rank issues what it
issued after an earlier one, from the same lines, and stops where it has to wait. A rank that issued
anything else has deviated, and two steps suffice to see it.

A rank that leaves out only the collective shared by all suspects meets the others at the next one:
from then on it is a step behind, and every rank looks as usual until something comes that not every
step has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.pattern.history import History, Issued, history_of
from hangscope.trace.model import NONE

_MOST_RANKS = 64
"""In a larger cycle no single rank is to blame."""
_USUAL_TIMES = 2


def deviating_rank(context: Context, suspects: Iterable[int]) -> tuple[int, ...]:
    """The one of ``suspects`` that did something else than before, if all others did not.

    Empty if several deviated, if a rank's past is unknown, or if a rank waits at a line that is new
    to it: then something new began for all of them.
    """
    ranks = sorted(set(suspects))
    if not 1 < len(ranks) <= _MOST_RANKS:
        return ()
    found = {rank: has_deviated(context, rank, ranks) for rank in ranks}
    odd = tuple(rank for rank, is_odd in found.items() if is_odd)
    return odd if len(odd) == 1 and None not in found.values() else ()


def left_routine(context: Context, suspects: Iterable[int]) -> tuple[int, ...]:
    """The deviating rank, if everybody's last two steps of the kind were alike.

    All others do as they did in them, also in what they have issued behind the operation they wait
    in: a rank that has posted more than usual has deviated as well.
    """
    ranks = sorted(set(suspects))
    odd = deviating_rank(context, ranks)
    settled = bool(odd) and all(_keeps_to_routine(context, r, ranks, r in odd) for r in ranks)
    return odd if settled else ()


def _keeps_to_routine(context: Context, rank: int, suspects: list[int], may_deviate: bool) -> bool:
    past = history_of(context, rank, suspects)
    earlier, newest = _stretches(past)
    alike = [stretch for stretch in earlier if stretch[:1] == newest[:1]][-_USUAL_TIMES:]
    if len(alike) < _USUAL_TIMES or any(stretch != alike[0] for stretch in alike):
        return False
    issued = newest + past.behind
    return may_deviate or alike[0][: len(issued)] == issued


def out_of_step(context: Context, suspects: Iterable[int]) -> tuple[int, ...]:
    """The one of ``suspects`` that once went through a step without the collective they share.

    A rank that issued it twice in a row counts too. Empty if several did, or none.
    """
    ranks = sorted(set(suspects))
    if not 1 < len(ranks) <= _MOST_RANKS:
        return ()
    odd = tuple(r for r in ranks if skipped_step(context, r, ranks))
    return odd if len(odd) == 1 else ()


def alone_as_usual(context: Context, rank: int, suspects: Iterable[int]) -> bool:
    """Whether the rank alone did what it had always done since all were together.

    Each of the others has at least two earlier steps on record and waits where it had waited
    before, so nothing new began for them. They may then have deviated together.
    """
    others = sorted(set(suspects) - {rank})[:_MOST_RANKS]
    if len(others) < _USUAL_TIMES or _as_usual(context, rank, [rank, *others]) is not True:
        return False
    return all(_as_usual(context, other, [rank, *others]) is False for other in others)


def _as_usual(context: Context, rank: int, suspects: list[int]) -> bool | None:
    """Whether the steps after such a collective used to begin in this way; None if unknown.

    The newest collective counts together with what came after it: a step may have several of them.
    """
    past = history_of(context, rank, suspects)
    earlier = [past.issued[a : b + 1] for a, b in pairwise(past.meetings)]
    newest = past.issued[past.meetings[-1] :] if past.meetings else []
    if len(earlier) < _USUAL_TIMES or len(newest) < _USUAL_TIMES:
        return None
    if not any(newest[-1] in stretch for stretch in earlier):
        return None
    return any(stretch[: len(newest)] == newest for stretch in earlier)


def skipped_step(context: Context, rank: int, others: Iterable[int]) -> bool:
    """Whether the rank once left out, or repeated, the collective that ends each step it shares
    with others."""
    earlier, _ = _stretches(history_of(context, rank, {rank, *others}))
    common = Counter(tuple(stretch) for stretch in earlier).most_common(2)
    if not common or len(common[0][0]) < 2:
        return False
    usual, times = common[0]
    if len(common) > 1 and common[1][1] == times:
        return False
    odd = {(*usual[:-1], *usual), usual[-1:]}
    # Only once: whatever happens repeatedly, or at the start, is the program's own way.
    steps = [tuple(stretch) for stretch in earlier]
    return sum(a == usual and b in odd for a, b in pairwise(steps)) == 1


def has_deviated(context: Context, rank: int, suspects: list[int]) -> bool | None:
    """Whether the rank's newest stretch differs from the beginning of all its earlier ones.

    None if no earlier one begins with the same operation, or if the rank waits at a new line.
    """
    earlier, newest = _stretches(history_of(context, rank, suspects))
    if not newest or newest[-1][-1] == NONE:
        return None
    if not any(newest[-1] in stretch for stretch in earlier):
        return None
    if any(stretch[: len(newest)] == newest for stretch in earlier):
        return _followed_unusually(context, rank, suspects)
    return True if any(stretch[:1] == newest[:1] for stretch in earlier) else None


def _followed_unusually(context: Context, rank: int, suspects: list[int]) -> bool:
    """Whether what followed the newest common collective never followed one of that kind before.

    If suspects share several groups, a step has several such collectives with nothing in between.
    """
    past = history_of(context, rank, suspects)
    newest, *earlier = (past.issued[at] for at in reversed(past.meetings))
    return earlier.count(newest) >= _USUAL_TIMES and _as_usual(context, rank, suspects) is False


def _stretches(past: History) -> tuple[list[list[Issued]], list[Issued]]:
    """What was issued between collectives of all suspects: earlier stretches, and the newest.

    The newest ends with the rank's oldest unfinished operation. What precedes the oldest such
    collective is a stretch if its beginning is on record.
    """
    if not past.meetings:
        return [], []
    starts = [-1, *past.meetings] if past.whole else past.meetings
    earlier = [past.issued[a + 1 : b + 1] for a, b in pairwise(starts)]
    return earlier, past.issued[past.meetings[-1] + 1 :]
