"""The status line below the panes: legend, number of ranks shown."""

from __future__ import annotations

from rich.text import Text

from hangscope.tui.ranks import RankTable
from hangscope.tui.sequence import sequence_legend
from hangscope.tui.timeline import Timeline


def status(pane: str, timeline: Timeline, ranks: RankTable, *, live: bool) -> Text:
    """The status line for the visible pane."""
    if pane == "timeline":
        text = timeline.legend()
        if live:
            text.append("   following" if timeline.follow else "   f follows", "dim")
        return text
    if pane == "ranks":
        order = ranks.sort or "culprits first"
        return Text(f"{ranks.summary()} · sorted by {order}, o for another")
    return sequence_legend() if pane == "sequence" else Text()
