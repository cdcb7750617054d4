"""Where everything stands on the screen, and where the details find room."""

from __future__ import annotations

from typing import NamedTuple

CSS = """
#bar { height: 1; background: $panel; padding: 0 1; }
#panes { height: 1fr; layout: vertical; }
#panes.-wide { layout: horizontal; }
#switch { width: 1fr; height: 1fr; }
#switch > * { height: 1fr; }
#side { width: 100%; display: none; border-top: solid $panel; }
.-wide > #side { width: 66; border-top: none; border-left: solid $panel; }
#status { height: 1; padding: 0 1; color: $secondary; }
#search { height: 1; border: none; padding: 0 1; display: none; background: $panel; }
#search.-open { display: block; }
"""

_SIDE_FROM = 150
"""Columns from which the details stand beside the pane."""
_BELOW_FROM = 9
"""Lines that must be free below the rows for the details to stand there."""
_FRAME_LINES = 6
"""Verdict, panes, status and keys."""
_ROWS_AT_FIRST = 9
"""Ranks there is room for until it is known how many there are."""


class Place(NamedTuple):
    """Where the details stand that belong to a pane."""

    beside: bool
    """Beside it; else below it."""
    shown: bool
    spare: int
    """Lines that are free below its rows."""


def place_details(width: int, height: int, *, rows: int | None, words: int, pane: str) -> Place:
    """Beside the pane where there is width, below it where there is height.

    Parameters
    ----------
    width, height:
        The screen, in columns and lines.
    rows:
        Ranks that the pane draws a line for; None until that is known.
    words:
        Lines of the verdict behind its first.
    pane:
        Its name.
    """
    rows = _ROWS_AT_FIRST if rows is None else rows
    spare = height - _FRAME_LINES - (rows + 1) - 1 - words
    beside = width >= _SIDE_FROM
    fits = beside or (pane in ("timeline", "ranks") and spare >= _BELOW_FROM)
    return Place(beside, fits and pane not in ("details", "stacks"), spare)
