"""Which sends of one rank belong to which receives of another where both records begin somewhere.

Two records of one channel, the sends of one rank and the receives of the other, that have both lost
their beginning cannot be paired by counting from the start. What has finished bounds how far the
ends may be apart, and times choose: nothing finishes before its other half was issued.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_COMPARED = 256
"""Newest halves of a side that are looked at."""
_CLEARLY = 3
"""How many times worse than the best a shift fits before as many finished halves count no more."""
_CLOCK_NS = 20 * 10**6
"""What clocks of two hosts may differ by and still count as the same."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a channel, oldest first: numbers, times (ns; 0: unknown), what is unfinished."""

    seq: npt.NDArray[np.int64]
    created_ns: npt.NDArray[np.int64]
    ended_ns: npt.NDArray[np.int64]
    unfinished: npt.NDArray[np.bool_]

    def at(self, which: slice | npt.NDArray[np.int64]) -> Side:
        """Some of the halves."""
        return Side(
            self.seq[which], self.created_ns[which], self.ended_ns[which], self.unfinished[which]
        )

    def waiting(self) -> int:
        """How many were issued after the last that has finished."""
        done = np.flatnonzero(~self.unfinished)
        return len(self.unfinished) - 1 - int(done[-1]) if len(done) else len(self.unfinished)


def shift(mine: Side, others: Side) -> int:
    """By how many more halves ``mine`` has been issued than ``others``; negative for fewer.

    The half that is ``k``-th from the end of ``mine`` belongs to the one that is
    ``k - shift``-th from the end of ``others``.
    """
    ahead, behind = mine.waiting(), others.waiting()
    apart = _numbers_apart(mine, others)
    if apart > ahead == len(mine.seq) and behind == 0:
        return apart  # what finished in pairs is gone from one side, what is left of it is later
    guess = ahead - behind  # as many have finished on both sides
    low, high = max(-behind, -_COMPARED), min(ahead, _COMPARED)
    nearest_first = sorted(range(low, high + 1), key=lambda by: (abs(by - guess), by))
    fits = [(by, _fit(mine, others, by)) for by in nearest_first]
    # Where nothing is possible the clocks disagree: then only what repeats in both can tell.
    fits = [(by, fit) for by, fit in fits if not fit.impossible] or fits
    for by, fit in fits:
        if fit.same_numbers:
            return by
    bound = _CLEARLY * min(fit.spread_ns for _, fit in fits) + _CLOCK_NS
    return next(by for by, fit in fits if fit.spread_ns <= bound)


def _numbers_apart(mine: Side, others: Side) -> int:
    """By how much more ``mine`` is numbered, where each half of either side has the next number.

    0 where numbers are left out: then they count what went elsewhere, too.
    """
    in_a_row = all(len(side.seq) > 1 and (np.diff(side.seq) == 1).all() for side in (mine, others))
    return int(mine.seq[-1] - others.seq[-1]) if in_a_row else 0


@dataclass(frozen=True, slots=True)
class _Fit:
    """How well two sides go together under one shift.

    ``impossible`` counts pairs of which one half finished before the other was issued;
    ``spread_ns`` is how much the time between the halves of a pair varies: pauses of the job,
    which both sides have at the same place, do not cancel out under a wrong shift.
    """

    impossible: int
    same_numbers: bool
    spread_ns: int


def _fit(mine: Side, others: Side, by: int) -> _Fit:
    length = min(len(mine.seq) - max(by, 0), len(others.seq) - max(-by, 0), _COMPARED)
    if length <= 0:
        return _Fit(0, same_numbers=False, spread_ns=np.iinfo(np.int64).max)
    a, b = _newest(mine, max(by, 0), length), _newest(others, max(-by, 0), length)
    impossible = (a.ended_ns > 0) & (b.created_ns > a.ended_ns + _CLOCK_NS)
    impossible |= (b.ended_ns > 0) & (a.created_ns > b.ended_ns + _CLOCK_NS)
    timed = (a.created_ns > 0) & (b.created_ns > 0) & ~(a.unfinished & b.unfinished)
    apart = (a.created_ns - b.created_ns)[timed]
    return _Fit(
        int(impossible.sum()),
        same_numbers=not (a.seq != b.seq).any(),
        spread_ns=int(apart.max() - apart.min()) if len(apart) else 0,
    )


def _newest(side: Side, left_out: int, length: int) -> Side:
    end = len(side.seq) - left_out
    return side.at(slice(end - length, end))
