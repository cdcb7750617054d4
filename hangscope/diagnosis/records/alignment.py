"""Matches sends of one rank with receives of another when both records start in the middle.

The two sides of a channel that have both lost their beginning cannot be paired by counting from the
start. Completions limit how far the ends of the records may be apart, and timestamps decide:
nothing finishes before its other half was issued.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_COMPARED = 256
"""Newest halves per side that are compared."""
_CLEARLY = 3
"""A shift that fits this many times worse than the best one cannot win by equal counts of finished
halves."""
_CLOCK_NS = 20 * 10**6
"""Clocks of two hosts that differ by less count as equal."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a channel, oldest first: numbers, times (ns; 0: unknown), unfinished halves."""

    seq: npt.NDArray[np.int64]
    created_ns: npt.NDArray[np.int64]
    ended_ns: npt.NDArray[np.int64]
    unfinished: npt.NDArray[np.bool_]

    def at(self, which: slice | npt.NDArray[np.int64]) -> Side:
        """A subset of the halves."""
        return Side(
            self.seq[which],
            self.created_ns[which],
            self.ended_ns[which],
            self.unfinished[which],
        )

    def waiting(self) -> int:
        """How many halves were issued after the last finished one."""
        done = np.flatnonzero(~self.unfinished)
        return len(self.unfinished) - 1 - int(done[-1]) if len(done) else len(self.unfinished)


def shift(own: Side, others: Side) -> int:
    """How many more halves ``own`` has issued than ``others``; negative for fewer.

    The ``k``-th half from the end of ``own`` belongs to the ``k - shift``-th from the end of
    ``others``.
    """
    ahead, behind = own.waiting(), others.waiting()
    apart = _numbers_apart(own, others)
    if apart > ahead == len(own.seq) and behind == 0:
        return apart  # one side lost what finished in pairs; what is left of it is newer
    guess = ahead - behind  # both sides have finished equally many
    low, high = max(-behind, -_COMPARED), min(ahead, _COMPARED)
    nearest_first = sorted(range(low, high + 1), key=lambda by: (abs(by - guess), by))
    fits = [(by, _fit(own, others, by)) for by in nearest_first]
    # If no shift is possible, the clocks disagree; only patterns repeated on both sides can decide.
    fits = [(by, fit) for by, fit in fits if not fit.impossible] or fits
    for by, fit in fits:
        if fit.same_numbers:
            return by
    bound = _CLEARLY * min(fit.spread_ns for _, fit in fits) + _CLOCK_NS
    return next(by for by, fit in fits if fit.spread_ns <= bound)


def _numbers_apart(own: Side, others: Side) -> int:
    """The offset between the numbers of both sides, if each side numbers its halves consecutively.

    0 if numbers are skipped: they then also count traffic to other ranks.
    """
    in_a_row = all(len(side.seq) > 1 and (np.diff(side.seq) == 1).all() for side in (own, others))
    return int(own.seq[-1] - others.seq[-1]) if in_a_row else 0


@dataclass(frozen=True, slots=True)
class _Fit:
    """How well two sides match under one shift.

    ``impossible`` counts pairs with one half finished before the other was issued. ``spread_ns``
    measures how much the time between the halves of a pair varies: pauses of the job happen on both
    sides at the same place and only cancel out under the right shift.
    """

    impossible: int
    same_numbers: bool
    spread_ns: int


def _fit(own: Side, others: Side, by: int) -> _Fit:
    length = min(len(own.seq) - max(by, 0), len(others.seq) - max(-by, 0), _COMPARED)
    if length <= 0:
        return _Fit(0, same_numbers=False, spread_ns=np.iinfo(np.int64).max)
    a, b = _newest(own, max(by, 0), length), _newest(others, max(-by, 0), length)
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
