"""Who makes everybody wait: a row per rank with its cost and a heat strip over time."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from hangscope.diagnosis.duration_text import duration
from hangscope.lateness.arrivals import arrivals
from hangscope.lateness.heat import Heat, heat
from hangscope.lateness.lateness import lateness_of
from hangscope.lateness.model import Lateness, RankLateness, costliest
from hangscope.report.escape import plain
from hangscope.report.lateness import sentence
from hangscope.tui.lines import LineList
from hangscope.tui.snapshot import Snapshot
from hangscope.tui.theme import CULPRIT, WAITING

NEWEST = 2000
"""How many of each rank's newest records are compared."""
COLUMNS = ("rank", "made wait", "waited", "last", "host")
_WIDTHS = (7, 11, 9, 13, 12)
_BINS = 60
_SHADES = " ░▒▓█"


class LateTable(LineList):
    """One row per rank, the costliest first; `o` sorts by the next column."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "sort", "Sort", show=False)]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.sort = "made wait"
        self.rows: list[RankLateness] = []
        self._heat: Heat | None = None
        self._late: frozenset[int] = frozenset()
        self._found: Lateness | None = None

    def count(self) -> int:
        return len(self.rows)

    @property
    def rank(self) -> int | None:
        """The rank under the cursor."""
        return self.rows[self.cursor].rank if self.cursor < len(self.rows) else None

    def show(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        compared = arrivals(snapshot.trace, NEWEST)
        self._found = lateness_of(snapshot.trace, compared)
        self._late = frozenset(rank for s in self._found.stragglers for rank in s.ranks)
        self._heat = heat(compared, _BINS) if len(compared.starts) else None
        self.rearrange()

    def rearrange(self) -> None:
        """Sort again; the cursor stays on its rank."""
        here = self.rank
        keys = {
            "rank": lambda r: r.rank,
            "made wait": lambda r: 0,  # as they come
            "waited": lambda r: -r.waited_s,
            "last": lambda r: -r.times_last / max(r.collectives, 1),
            "host": lambda r: r.host,
        }
        found = self._found.ranks if self._found is not None else ()
        self.rows = sorted(costliest(found), key=keys[self.sort])
        ranks = [row.rank for row in self.rows]
        if here in ranks:
            self.cursor = ranks.index(here)
        self.relayout()

    def header(self, width: int) -> Text:
        text = Text("  ")
        for name, size in zip(COLUMNS, _WIDTHS, strict=True):
            text.append(f"{name}{'↓' if name == self.sort else ''}".ljust(size)[:size])
        return text.append("over time")

    def line(self, row: int, width: int, selected: bool) -> Text:
        one = self.rows[row]
        late = one.rank in self._late
        text = Text("▸ " if late else "  ", CULPRIT if late else "")
        cells = (
            str(one.rank),
            duration(one.made_wait_s),
            duration(one.waited_s),
            f"{one.times_last} of {one.collectives}",
            plain(one.host, 40),
        )
        for name, cell, size in zip(COLUMNS, cells, _WIDTHS, strict=True):
            style = f"bold {CULPRIT}" if late and name == "rank" else ""
            cell = cell if len(cell) < size else cell[: size - 2] + "…"
            text.append(cell.ljust(size), "dim" if name == "host" else style)
        return text.append(self._strip_of(one.rank, max(width - sum(_WIDTHS) - 2, 0)), WAITING)

    def _strip_of(self, rank: int, width: int) -> str:
        """A rank's heat strip: a shade per part of the time, against the hottest of all."""
        if self._heat is None or rank not in self._heat.ranks or not width:
            return ""
        shares = self._heat.shares
        hottest = float(shares.max()) or 1.0
        own = shares[self._heat.ranks.index(rank)] / hottest
        return "".join(_SHADES[round(float(s) * (len(_SHADES) - 1))] for s in own)[:width]

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.sort = COLUMNS[(COLUMNS.index(self.sort) + 1) % len(COLUMNS)]
        self.rearrange()

    def summary(self) -> str:
        """The costliest straggler, or that there is none."""
        if self._found is None or not self._found.collectives:
            return "no collective of which all members are recorded"
        if self._found.stragglers:
            return sentence(self._found.stragglers[0])
        return "nobody is late more often than chance explains"
