"""Who waited, for whom alone, and for how long: intervals between arrivals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.lateness.arrivals import Arrivals, Ints


@dataclass(frozen=True, slots=True)
class Waits:
    """Separate waits for one unit of ranks each, sorted by unit and time.

    A unit is a set of ranks with one label: a single rank, a host, a position in the mesh.
    A delay that shows in several collectives is one wait.
    """

    unit: Ints
    begin_ns: Ints
    end_ns: Ints
    collective: Ints
    """The collective of each wait."""
    units_in: Ints
    """How many units took part in that collective."""

    @property
    def length_ns(self) -> Ints:
        """How long each wait lasted."""
        return self.end_ns - self.begin_ns


def waits(arrivals: Arrivals, unit_of: Ints, taking_part: npt.NDArray[np.bool_]) -> Waits:
    """The waits for each unit alone: from the last arrival of any other unit to its own.

    Parameters
    ----------
    arrivals:
        All arrivals.
    unit_of:
        The unit of each rank, shape ``[highest rank + 1]``; -1 for none.
    taking_part:
        Mask over collectives, shape ``[collectives]``.
    """
    unit = unit_of[arrivals.rank]
    sizes, starts = arrivals.sizes, arrivals.starts
    if not len(starts):
        empty = np.zeros(0, np.int64)
        return Waits(empty, empty, empty, empty, empty)
    top = unit[arrivals.last]
    others = np.where(unit != np.repeat(top, sizes), arrivals.own_ns, -1)
    second_ns = np.maximum.reduceat(others, starts)
    # Nobody waits longer for it than from the first arrival on, whatever held up the others.
    first_ns = np.minimum.reduceat(arrivals.arrived_ns, starts)
    begin_ns = np.maximum(first_ns, arrivals.last_ns - (arrivals.own_ns[arrivals.last] - second_ns))
    good = taking_part & (top >= 0) & (second_ns >= 0) & (begin_ns < arrivals.last_ns)
    at = np.flatnonzero(good)
    order = at[np.lexsort((arrivals.last_ns[at], top[at]))]
    kept = order[
        _not_repeated(
            top[order], begin_ns[order], arrivals.last_ns[order], arrivals.since_ns[order]
        )
    ]
    units_in = _distinct(unit, arrivals)
    return Waits(top[kept], begin_ns[kept], arrivals.last_ns[kept], kept, units_in[kept])


def _distinct(unit: Ints, arrivals: Arrivals) -> Ints:
    """Number of units in each collective."""
    number = np.repeat(np.arange(len(arrivals.starts)), arrivals.sizes)
    pairs = np.unique(number * (int(unit.max(initial=0)) + 2) + unit + 1)
    return np.bincount(pairs // (int(unit.max(initial=0)) + 2), minlength=len(arrivals.starts))


def _not_repeated(unit: Ints, begin: Ints, end: Ints, since: Ints) -> list[int]:
    """Which waits to count, of waits sorted by unit and end: each delay once.

    A unit that is late shows in every collective until its group waits for it: in the gradient
    buckets of one backward pass, in its small group and then in the large one. So a wait stands for
    those of its unit since its group last met, or they for it if they are longer in sum.
    """
    units, begins = unit.tolist(), begin.tolist()
    lengths, sinces = (end - begin).tolist(), since.tolist()
    kept: list[int] = []
    for at, length in enumerate(lengths):
        first, total = len(kept), 0
        while (
            first and units[kept[first - 1]] == units[at] and begins[kept[first - 1]] >= sinces[at]
        ):
            first -= 1
            total += lengths[kept[first]]
        if total < length:
            del kept[first:]
            kept.append(at)
    return kept


def waited_ns(arrivals: Arrivals) -> dict[int, int]:
    """Per rank, how long it waited for later members."""
    total = np.bincount(arrivals.rank, arrivals.waited_ns)
    return {int(rank): int(total[rank]) for rank in np.unique(arrivals.rank)}
