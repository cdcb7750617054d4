"""Who made the others wait when: a picture of ranks over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.lateness.arrivals import Arrivals
from hangscope.lateness.waits import waits


@dataclass(frozen=True, slots=True)
class Heat:
    """For each rank and each part of the observed time, how much of it all others waited for it."""

    ranks: tuple[int, ...]
    shares: npt.NDArray[np.float64]
    """Shape ``[ranks, bins]``, 0 to 1."""
    first_ns: int
    last_ns: int


def heat(arrivals: Arrivals, bins: int) -> Heat:
    """The waits for each rank alone, by the time at which they ended.

    Parameters
    ----------
    arrivals:
        At least one collective.
    bins:
        Into how many equal parts the time is divided.
    """
    ranks = np.unique(arrivals.rank)
    index = np.full(int(ranks.max()) + 1, -1)
    index[ranks] = np.arange(len(ranks))
    alone = waits(arrivals, index, np.ones(len(arrivals.starts), bool))
    first, last = int(arrivals.arrived_ns.min()), int(arrivals.arrived_ns.max())
    width = max((last - first) / bins, 1.0)
    column = np.minimum((alone.end_ns - first) // width, bins - 1).astype(np.int64)
    lost = np.zeros((len(ranks), bins))
    np.add.at(lost, (alone.unit, column), alone.length_ns)
    return Heat(tuple(ranks.tolist()), np.minimum(lost / width, 1.0), first, last)
