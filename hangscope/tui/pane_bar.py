"""The bar with the names of the panes, which can be clicked."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Static

from hangscope.tui.commands import PANES


class PaneBar(Static):
    """Names and numbers of all panes; the visible one is underlined."""

    class Picked(Message):
        """A name was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def show(self, current: str) -> None:
        """Draw the bar with ``current`` as the visible pane."""
        text = Text(no_wrap=True, overflow="ellipsis")
        for i, (name, title) in enumerate(PANES.items()):
            text.append(f" {i + 1} ", "dim")
            text.append(title, "bold underline" if name == current else "")
            text.append("  ")
        self.update(text)

    def on_click(self, event: events.Click) -> None:
        at = 1
        for i, (name, title) in enumerate(PANES.items()):
            end = at + len(f" {i + 1} {title}  ")
            if at <= event.x < end:
                self.post_message(self.Picked(name))
                return
            at = end
