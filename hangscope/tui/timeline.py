"""The timeline: a row for each rank, with time on the x axis and waits drawn as such."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from hangscope.diagnosis.duration_text import duration
from hangscope.report.palette import KINDS, kind_of
from hangscope.tui import paint
from hangscope.tui.lines import LineList
from hangscope.tui.paint import Window
from hangscope.tui.snapshot import Snapshot

_NARROWEST_NS, _WIDEST_NS = 100, 3600 * 10**9
_ZOOM = 1.6


class Timeline(LineList):
    """Rows of ranks; the cursor is a rank and one of its operations."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", "Earlier", show=False),
        Binding("right,l", "step(1)", "Later", show=False),
        Binding("shift+left,H,[", "pan(-1)", "Pan left", show=False),
        Binding("shift+right,L,]", "pan(1)", "Pan right", show=False),
        Binding("plus,equals_sign,z", "zoom(1)", "Zoom in", show=False),
        Binding("minus,underscore,Z", "zoom(-1)", "Zoom out", show=False),
        Binding("0", "fit", "Whole run", show=False),
        Binding("c", "culprit", "Next culprit", show=False),
    ]

    header_lines = 1

    @dataclass
    class Selected(Message):
        """Another rank or another operation is selected."""

        rank: int
        record: int | None

    def __init__(self, *, letters: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.letters = letters
        self.follow = True
        self.left_ns = 0
        self.scale_ns = 0
        self.record: int | None = None

    # Content

    def count(self) -> int:
        return len(self.snapshot.ranks) if self.snapshot else 0

    @property
    def rank(self) -> int | None:
        """The rank under the cursor."""
        if self.snapshot is None or not self.snapshot.ranks:
            return None
        return self.snapshot.ranks[min(self.cursor, len(self.snapshot.ranks) - 1)]

    def show(self, snapshot: Snapshot) -> None:
        first = self.snapshot is None or not self.snapshot.is_judged
        selected = self._identity()
        self.snapshot = snapshot
        if first:
            if snapshot.divergence_ns is not None:
                self.call_after_refresh(self.jump)
            else:
                self.call_after_refresh(self._follow_now)
        self.record = self._same(selected)
        if self.follow and self.scale_ns:
            self._to_end()
        self.relayout()

    def _identity(self) -> tuple[int, int] | None:
        """(rank, record id) of the selected operation; positions change as the ring advances."""
        if self.snapshot is None or self.record is None:
            return None
        row = self.snapshot.trace.records[self.record]
        return int(row["rank"]), int(row["record_id"])

    def _same(self, selected: tuple[int, int] | None) -> int | None:
        if selected is None or self.snapshot is None:
            return None
        lo, hi = self.snapshot.rows(selected[0])
        hit = np.flatnonzero(self.snapshot.trace.records["record_id"][lo:hi] == selected[1])
        return lo + int(hit[0]) if len(hit) else None

    # Time and place

    def label_width(self) -> int:
        """Columns for rank numbers and marks on the left."""
        top = self.snapshot.ranks[-1] if self.snapshot and self.snapshot.ranks else 0
        return len(str(top)) + 4

    def window(self) -> Window:
        """The visible time range."""
        width = max(self.scrollable_content_region.width - self.label_width(), 1)
        return Window(self.left_ns, max(self.scale_ns, _NARROWEST_NS), width)

    def jump(self) -> None:
        """Go to the culprit's row at the moment of divergence."""
        snapshot = self.snapshot
        if snapshot is None or not self.size.width:
            return
        at = snapshot.divergence_ns
        if at is None:
            self._follow_now()
            return
        self.follow = False
        self.scale_ns = self._natural_scale(at)
        self.left_ns = at - int(self.window().width * 0.62) * self.scale_ns
        finding = snapshot.finding
        if finding is not None:
            about = finding.culprits or finding.victims
            rank = next((r for r in about if r in snapshot.ranks), None)
            if rank is not None:
                self.cursor = snapshot.ranks.index(rank)
                self.record = snapshot.record_at_divergence(rank)
        self._center()
        self._announce()
        self.refresh_rows()

    def _natural_scale(self, at: int) -> int:
        """Time per column that fits the last dozen operations before `at` into the left part."""
        assert self.snapshot is not None
        timing = self.snapshot.timing
        finding = self.snapshot.finding
        ranks = [r for s in finding.sides for r in s.ranks][:8] if finding else []
        span = 0
        for rank in ranks or self.snapshot.ranks[:8]:
            lo, hi = self.snapshot.rows(rank)
            starts = timing.start_ns[lo:hi]
            starts = np.sort(starts[(starts > 0) & (starts < at)])[-24:]
            if len(starts):
                span = max(span, at - int(starts[0]))
        span = min(span or 10**9, 600 * 10**9)
        return self._clamped(span / max(self.window().width * 0.58, 1))

    def _clamped(self, scale: float) -> int:
        return int(min(max(scale, _NARROWEST_NS), _WIDEST_NS))

    def _center(self) -> None:
        height = max(self.size.height - self.header_lines, 1)
        top = min(max(self.cursor - height // 2, 0), max(self.count() - height, 0))
        self.scroll_to(y=top, animate=False, force=True)

    def _to_end(self) -> None:
        assert self.snapshot is not None
        window = self.window()
        self.left_ns = self.snapshot.timing.last_ns - int(window.width * 0.97) * window.scale_ns

    def _follow_now(self) -> None:
        if self.snapshot is None or not self.size.width:
            return
        self.follow = True
        if not self.scale_ns:
            self.scale_ns = self._natural_scale(self.snapshot.timing.last_ns)
        self._to_end()
        self.refresh_rows()

    def on_resize(self) -> None:
        if self.snapshot is not None and self.follow and self.scale_ns:
            self._to_end()
        super().on_resize()

    # Actions

    def action_follow(self) -> None:
        """Toggle keeping the newest moment at the right edge."""
        if self.follow:
            self.follow = False
            self.refresh_rows()
        else:
            self._follow_now()

    def action_step(self, by: int) -> None:
        """Go to the rank's previous or next operation."""
        snapshot, rank = self.snapshot, self.rank
        if snapshot is None or rank is None:
            return
        lo, hi = snapshot.rows(rank)
        if lo == hi:
            return
        if self.record is None or not lo <= self.record < hi:
            self.record = snapshot.record_near(rank, self.window().at(self.window().width // 2))
        else:
            self.record = min(max(self.record + by, lo), hi - 1)
        self._show_record()
        self._announce()

    def _show_record(self) -> None:
        assert self.snapshot is not None
        assert self.record is not None
        window = self.window()
        column = window.column(int(self.snapshot.timing.start_ns[self.record]))
        if not 0 <= column < window.width - 2:
            self.follow = False
            start = int(self.snapshot.timing.start_ns[self.record])
            self.left_ns = start - window.width // 2 * window.scale_ns
        self.refresh_rows()

    def action_pan(self, by: int) -> None:
        self.follow = False
        window = self.window()
        self.left_ns += by * (window.width // 3) * window.scale_ns
        self.refresh_rows()

    def action_zoom(self, by: int) -> None:
        window = self.window()
        anchor = window.width // 2
        if self.snapshot is not None and self.record is not None:
            column = window.column(int(self.snapshot.timing.start_ns[self.record]))
            anchor = column if 0 <= column < window.width else anchor
        self.zoom_at(anchor, by)

    def zoom_at(self, column: int, by: int) -> None:
        """Zoom in (`by` > 0) or out; the time at `column` stays there."""
        at = self.left_ns + column * max(self.scale_ns, 1)
        self.scale_ns = self._clamped(self.scale_ns / _ZOOM**by)
        self.left_ns = at - column * self.scale_ns
        if self.follow and self.snapshot is not None:
            self._to_end()
        self.refresh_rows()

    def action_fit(self) -> None:
        """Fit the whole run on the screen."""
        if self.snapshot is None:
            return
        self.follow = False
        timing = self.snapshot.timing
        length = max(timing.last_ns - timing.first_ns, 1)
        self.scale_ns = self._clamped(length / max(self.window().width - 2, 1) + 1)
        self.left_ns = timing.first_ns
        self.refresh_rows()

    def action_culprit(self) -> None:
        """Go to the next culprit's row."""
        if self.snapshot is None:
            return
        rows = [i for i, r in enumerate(self.snapshot.ranks) if self.snapshot.role(r) == "culprit"]
        if rows:
            self.move_to(next((i for i in rows if i > self.cursor), rows[0]))

    def move_to(self, row: int) -> None:
        before = self.record
        super().move_to(row)
        if self.snapshot is None or self.rank is None:
            return
        if before is None:
            self.record = self.snapshot.record_at_divergence(self.rank)
        else:  # the same collective on the other rank, else what it did at that time
            self.record = self.snapshot.record_like(self.rank, before)
            if self.record is None:
                at = int(self.snapshot.timing.start_ns[before])
                self.record = self.snapshot.record_near(self.rank, at)
        self._announce()

    def select(self, rank: int, record: int | None) -> None:
        """Select an operation from elsewhere (search, another pane)."""
        if self.snapshot is None or rank not in self.snapshot.ranks:
            return
        self.cursor = self.snapshot.ranks.index(rank)
        self.record = record
        self.reveal()
        if record is not None and self.size.width:
            self._show_record()
        self._announce()
        self.refresh_rows()

    def _announce(self) -> None:
        if self.rank is not None:
            self.post_message(self.Selected(self.rank, self.record))

    # The mouse

    def on_click(self, event: events.Click) -> None:
        row = self.row_at(event.y)
        if row is None or self.snapshot is None:
            return
        self.cursor = row
        assert self.rank is not None
        column = event.x - self.label_width()
        records, _ = paint.cells(self.snapshot, self.rank, self.window())
        if 0 <= column < len(records) and records[column] >= 0:
            self.record = int(records[column])
        else:
            self.record = self.snapshot.record_near(self.rank, self.window().at(max(column, 0)))
        self._announce()
        self.refresh_rows()
        if event.chain == 2:
            self.action_choose()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        if event.ctrl:
            event.stop()
            event.prevent_default()
            self.zoom_at(max(event.x - self.label_width(), 0), 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        if event.ctrl:
            event.stop()
            event.prevent_default()
            self.zoom_at(max(event.x - self.label_width(), 0), -1)

    # Drawing

    def header(self, width: int) -> Text:
        """The ruler: times relative to the divergence, or to the end of the observation."""
        assert self.snapshot is not None
        window = self.window()
        zero = self.snapshot.divergence_ns or self.snapshot.timing.last_ns
        line = [" "] * window.width
        step = _tick(window.scale_ns * 16)
        first = (window.left_ns - zero) // step + 1
        for i in range(int(first), int(first) + window.width // 8 + 2):
            column = window.column(zero + i * step)
            text = "0" if i == 0 else f"{'−' if i < 0 else '+'}{duration(abs(i) * step / 1e9)}"
            begin = column - len(text) // 2
            if begin >= 0 and begin + len(text) <= window.width:
                line[begin : begin + len(text)] = list(text)
        word = "rank".rjust(self.label_width() - 2) + "  "
        return Text(word[: self.label_width()] + "".join(line))

    def line(self, row: int, width: int, selected: bool) -> list[Segment]:
        assert self.snapshot is not None
        rank = self.snapshot.ranks[row]
        guilty = self.snapshot.role(rank) == "culprit"
        style = paint.CULPRIT_STYLE if guilty else Style(dim=rank not in self.snapshot.bounds)
        number = str(rank).rjust(self.label_width() - 4)
        label = Segment(f"{'▸' if guilty else ' '} {number}  ", style)
        cursor = self.record if selected else None
        cells = paint.row(self.snapshot, rank, self.window(), letters=self.letters, cursor=cursor)
        return [label, *cells]

    def legend(self) -> Text:
        """The legend of the colours in this run."""
        text = Text()
        if self.snapshot is None:
            return text
        present = {kind_of(s.op) for s in self.snapshot.trace.signatures}
        for kind, (_, word) in KINDS.items():
            if kind in present:
                text.append(paint.glyph(kind, self.letters), paint.kind_style(kind))
                text.append(f" {word}  ")
        text.append(f"{paint.WAIT}{paint.WAIT}", paint.OPEN_STYLE).append(" waiting  ")
        text.append(f"{paint.GAP}{paint.GAP}", paint.ABSENT_STYLE).append(" not there")
        return text


def _tick(at_least_ns: int) -> int:
    """The smallest 1, 2 or 5 × 10ⁿ ns, or whole minutes, that is not below `at_least_ns`."""
    scale = 1
    while scale * 10 < at_least_ns:
        scale *= 10
    step = next((m * scale for m in (1, 2, 5, 10) if m * scale >= at_least_ns), scale * 10)
    minute = 60 * 10**9
    return step if step < minute else (step + minute - 1) // minute * minute
