"""A list of any length, of which only the visible lines are ever created.

The base of every pane with rows: a fixed header, a cursor, vim keys, the mouse. No cost depends on
the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hangscope.tui.snapshot import Snapshot
from hangscope.tui.theme import SELECTED


class LineList(ScrollView, can_focus=True):
    """Subclasses implement `count`, `line` and, if they have one, `header`."""

    DEFAULT_CSS = """
    LineList { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1;
        background: $background; scrollbar-color: $panel; scrollbar-background: $background; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(0)", "Top", show=False),
        Binding("end,G", "edge(1)", "Bottom", show=False),
        Binding("enter", "choose", "Details", key_display="⏎"),
    ]

    header_lines = 1

    @dataclass
    class Chosen(Message):
        """Enter or a double click on a row."""

        sender: LineList
        row: int

    @dataclass
    class Moved(Message):
        """The cursor has moved to another row."""

        sender: LineList
        row: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self.snapshot: Snapshot | None = None

    # What subclasses say

    def count(self) -> int:
        """Number of rows."""
        return 0

    def line(self, row: int, width: int, selected: bool) -> Text | list[Segment]:
        """The content of a row; cut and padded to `width` by the caller."""
        raise NotImplementedError

    def header(self, width: int) -> Text:
        """The fixed first line."""
        return Text()

    # Drawing

    def show(self, snapshot: Snapshot) -> None:
        """Draw another snapshot without moving the cursor."""
        self.snapshot = snapshot
        self.relayout()

    def relayout(self) -> None:
        """Update size, cursor and screen after the number of rows may have changed."""
        count = self.count()
        self.virtual_size = Size(self.size.width, count + self.header_lines)
        self.cursor = min(max(self.cursor, 0), max(count - 1, 0))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if self.snapshot is None or width <= 0:
            return Strip.blank(self.size.width, self.rich_style)
        if y < self.header_lines:
            return self._strip(self.header(width), width, self.rich_style + Style(dim=True))
        row = y - self.header_lines + round(self.scroll_y)
        if row >= self.count():
            return Strip.blank(self.size.width, self.rich_style)
        selected = row == self.cursor
        style = self.rich_style
        if selected:
            style = self._selected_style()
        return self._strip(self.line(row, width, selected), width, style)

    def _selected_style(self) -> Style:
        ground = self.app.theme_variables.get("panel", SELECTED)
        return self.rich_style + Style(bgcolor=ground, bold=self.has_focus)

    def _strip(self, content: Text | list[Segment], width: int, style: Style) -> Strip:
        if isinstance(content, Text):
            content.end = ""
            content.no_wrap = True
            content.truncate(width, overflow="ellipsis", pad=False)
            content = list(content.render(self.app.console))
        strip = Strip(content).apply_style(Style()).adjust_cell_length(width, None)
        under = Strip(
            [Segment(s.text, style + s.style if s.style else style) for s in strip]
        ).adjust_cell_length(width, style)
        return under.crop(0, width)

    def on_resize(self) -> None:
        self.relayout()
        self.reveal()

    # The cursor

    def move_to(self, row: int) -> None:
        """Put the cursor on `row` and scroll to it."""
        row = min(max(row, 0), max(self.count() - 1, 0))
        changed = row != self.cursor
        self.cursor = row
        self.reveal()
        self.refresh()
        if changed:
            self.post_message(self.Moved(self, row))

    def reveal(self) -> None:
        """Scroll so that the cursor's row is visible."""
        height = max(self.size.height - self.header_lines, 1)
        top = round(self.scroll_y)
        if self.cursor < top:
            top = self.cursor
        elif self.cursor >= top + height:
            top = self.cursor - height + 1
        if top != round(self.scroll_y):
            self.scroll_to(y=top, animate=False, force=True)

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(self.size.height - self.header_lines - 1, 1))

    def action_edge(self, end: int) -> None:
        self.move_to(self.count() - 1 if end else 0)

    def action_choose(self) -> None:
        if self.count():
            self.post_message(self.Chosen(self, self.cursor))

    def row_at(self, y: int) -> int | None:
        """The row drawn at screen line `y` of this widget."""
        row = y - self.header_lines + round(self.scroll_y)
        return row if y >= self.header_lines and 0 <= row < self.count() else None

    def on_click(self, event: events.Click) -> None:
        row = self.row_at(event.y)
        if row is not None:
            self.move_to(row)
            if event.chain == 2:
                self.action_choose()

    def refresh_rows(self) -> None:
        """Redraw; the number of rows has not changed."""
        self.refresh(Region(0, 0, *self.size))
