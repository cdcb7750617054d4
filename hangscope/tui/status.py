"""The status line below the panes: legend, number of ranks shown."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget

from hangscope.tui.late import LateTable
from hangscope.tui.ranks import RankTable
from hangscope.tui.sequence import SequenceView, sequence_legend
from hangscope.tui.timeline import Timeline


def status(pane: Widget, *, live: bool) -> Text:
    """The status line for the visible pane."""
    if isinstance(pane, Timeline):
        text = pane.legend()
        if live:
            text.append("   following" if pane.follow else "   f follows", "dim")
        return text
    if isinstance(pane, RankTable):
        order = pane.sort or "culprits first"
        return Text(f"{pane.summary()} · sorted by {order}, o for another")
    if isinstance(pane, LateTable):
        return Text(pane.summary())
    return sequence_legend() if isinstance(pane, SequenceView) else Text()
