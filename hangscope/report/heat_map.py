"""The picture of ranks over time: how much of it all others waited for each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.duration_text import duration
from hangscope.lateness.arrivals import arrivals
from hangscope.lateness.heat import heat
from hangscope.lateness.lateness import rank_lateness
from hangscope.lateness.model import costliest
from hangscope.report.timeline import WIDTH
from hangscope.trace.model import Trace

BINS = 72
ROWS = 32
"""The costliest ranks that are drawn."""
LEFT, ROW = 76.0, 16.0
"""Left edge of the cells and height of a row, in pixels."""
NEWEST = 2000
"""How many of each rank's newest records are compared."""
LEAST_COLLECTIVES = 20
"""A picture of fewer would show chance."""
_FAINTEST = 0.02


@dataclass(frozen=True, slots=True)
class Cell:
    """Part of the time: the share that all others waited for the rank, 0 to 1."""

    x: float
    width: float
    share: float


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One rank."""

    rank: int
    y: float
    lost: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The costliest ranks, the costliest first."""

    rows: tuple[HeatRow, ...]
    height: float
    left_out: int


def heat_map(trace: Trace) -> HeatMap | None:
    """The heat map of a job; None if too little is on record."""
    compared = arrivals(trace, NEWEST)
    if len(compared.starts) < LEAST_COLLECTIVES:
        return None
    found = heat(compared, BINS)
    cell = (WIDTH - LEFT) / BINS
    rows = [
        HeatRow(
            one.rank,
            number * ROW,
            duration(one.made_wait_s),
            tuple(
                Cell(LEFT + int(at) * cell, cell, round(float(shares[at]), 3))
                for at in np.flatnonzero(shares >= _FAINTEST)
            ),
        )
        for number, one in enumerate(costliest(rank_lateness(trace, compared))[:ROWS])
        for shares in (found.shares[found.ranks.index(one.rank)],)
    ]
    return HeatMap(tuple(rows), len(rows) * ROW, len(found.ranks) - len(rows))
