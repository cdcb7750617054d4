"""The rank table: state, rate, last operation, waiting since, host; sortable and filterable."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType

from hangscope.diagnosis.duration_text import duration
from hangscope.report.escape import plain
from hangscope.report.formatting import operation, whereabouts
from hangscope.report.wait_bundles import group_labels
from hangscope.trace.rank_text import compress
from hangscope.tui.lines import LineList
from hangscope.tui.paint import CULPRIT_STYLE
from hangscope.tui.snapshot import Snapshot
from hangscope.tui.theme import CULPRIT, WAITING

_ROLES = {"culprit": 0, "victim": 1, "unknown": 2, "bystander": 3}
COLUMNS = ("rank", "state", "waiting", "rate", "last", "host", "at")
_WIDTHS = (7, 9, 10, 8, 27, 12, 30)


class RankTable(LineList):
    """One row per rank; `o` sorts by the next column, `O` reverses the order."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "sort", "Sort", show=False),
        Binding("O", "reverse", "Turn round", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.sort = ""
        """The column to sort by; empty for culprits first, then by rank."""
        self.reverse = False
        self.filter = ""
        self.rows: list[int] = []
        self._labels: dict[str, str] = {}
        self._several_hosts = True

    def count(self) -> int:
        return len(self.rows)

    @property
    def rank(self) -> int | None:
        """The rank under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def show(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._labels = group_labels(snapshot.diagnosis, snapshot.trace)
        hosts = {report.host for report in snapshot.diagnosis.ranks if report.host}
        self._several_hosts = len(hosts) > 1
        self.rearrange()

    def rearrange(self) -> None:
        """Filter and sort again; the cursor stays on its rank."""
        if self.snapshot is None:
            return
        here = self.rank
        words = self.filter.lower().split()
        rows = [r for r in self.snapshot.ranks if not words or self._matches(r, words)]
        rows.sort(key=self._key, reverse=self.reverse)
        self.rows = rows
        if here in rows:
            self.cursor = rows.index(here)
        self.relayout()

    def _matches(self, rank: int, words: list[str]) -> bool:
        assert self.snapshot is not None
        text = " ".join(self.cells(rank)).lower() + " " + self.snapshot.role(rank)
        return all(w in text or w == str(rank) for w in words)

    def _key(self, rank: int) -> tuple[object, ...]:
        assert self.snapshot is not None
        if not self.sort:
            return (_ROLES.get(self.snapshot.role(rank), 9), rank)
        if self.sort == "rank":
            return (rank,)
        if self.sort == "waiting":
            report = self.snapshot.reports.get(rank)
            waited = report.waiting_s if report else None
            return (-(waited if waited is not None else -1.0), rank)
        if self.sort == "rate":
            rate = self.snapshot.rate(rank)
            return (-1.0 if rate is None else rate, rank)
        return (self.cells(rank)[COLUMNS.index(self.sort)], rank)

    def cells(self, rank: int) -> tuple[str, ...]:
        """The texts of a row, in the order of `COLUMNS`."""
        assert self.snapshot is not None
        report = self.snapshot.reports.get(rank)
        facts = self.snapshot.trace.ranks.get(rank)
        rate = self.snapshot.rate(rank)
        last, waiting, at, state = "", "", "", "no source"
        if report is not None:
            state = report.state
            waiting = duration(report.waiting_s)
            if report.last is not None:
                group = self._labels.get(report.last.group, report.last.group)
                last = f"{operation(report.last.op, report.last.seq)} {plain(group, 40)}"
            at = whereabouts(report)
        host = (report.host if report else None) or (facts.host if facts else None) or ""
        pace = "" if rate is None else f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
        return (str(rank), state, waiting, pace, last, plain(host, 60), plain(at, 120))

    def widths(self, width: int) -> list[int]:
        """Column widths on a screen of `width` columns; the last one takes the rest."""
        out = list(_WIDTHS)
        if width < 100:
            out[COLUMNS.index("host")] = 8 if self._several_hosts else 0
            out[COLUMNS.index("last")] = 19 if self._several_hosts else 26
            out[COLUMNS.index("rate")] = 7
            out[COLUMNS.index("rank")] = 6
        elif width >= 140:
            out[COLUMNS.index("last")] = 36
            out[COLUMNS.index("host")] = 18
        out[-1] = max(width - sum(out[:-1]) - 2, 0)
        return out

    def header(self, width: int) -> Text:
        text = Text("  ")
        for name, size in zip(COLUMNS, self.widths(width), strict=True):
            mark = ""
            if name == self.sort:
                mark = "↑" if self.reverse else "↓"
            text.append(f"{name}{mark}".ljust(size)[:size])
        return text

    def line(self, row: int, width: int, selected: bool) -> Text:
        assert self.snapshot is not None
        rank = self.rows[row]
        guilty = self.snapshot.role(rank) == "culprit"
        text = Text("▸ " if guilty else "  ", CULPRIT_STYLE if guilty else "")
        for name, cell, size in zip(COLUMNS, self.cells(rank), self.widths(width), strict=True):
            style = ""
            if guilty and name in ("rank", "state"):
                style = f"bold {CULPRIT}"
            elif name == "waiting" or (name == "state" and cell == "waiting"):
                style = WAITING
            elif name in ("host", "rate") or cell == "no source":
                style = "dim"
            if len(cell) > size - 1:
                cell = cell[: max(size - 2, 0)] + "…" if size > 2 else ""
            text.append(cell.ljust(size), style)
        return text

    def action_sort(self) -> None:
        names = ("", *COLUMNS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]
        self.rearrange()

    def action_reverse(self) -> None:
        self.reverse = not self.reverse
        self.rearrange()

    def sort_by(self, name: str) -> None:
        """Sort by a column; if it is already the one, reverse the order."""
        self.reverse = not self.reverse if name == self.sort else False
        self.sort = name
        self.rearrange()

    def on_click(self, event: events.Click) -> None:
        if event.y < self.header_lines:
            at = 2
            for name, size in zip(COLUMNS, self.widths(self.size.width), strict=True):
                if at <= event.x < at + size:
                    self.sort_by(name)
                    return
                at += size
            return
        super().on_click(event)

    def select(self, rank: int) -> None:
        """Put the cursor on a rank."""
        if rank in self.rows:
            self.move_to(self.rows.index(rank))

    def summary(self) -> str:
        """How many rows are shown, and why not all."""
        assert self.snapshot is not None
        total = len(self.snapshot.ranks)
        if self.filter:
            return f"{len(self.rows)} of {total} ranks match “{plain(self.filter, 40)}”"
        missing = [r for r in self.snapshot.ranks if r not in self.snapshot.reports]
        return f"no source for {compress(missing, 40)}" if missing else f"{total} ranks"
