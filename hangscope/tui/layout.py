"""Screen layout: where the details pane goes."""

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
"""Minimum columns to put the details beside the pane."""
_BELOW_FROM = 9
"""Minimum free lines below the rows to put the details there."""
_FRAME_LINES = 6
"""Lines taken by verdict, pane bar, status and keys."""
_ROWS_AT_FIRST = 9
"""Assumed number of ranks until it is known."""


class Place(NamedTuple):
    """Where a pane's details go."""

    beside: bool
    """Beside the pane; else below it."""
    shown: bool
    spare: int
    """Free lines below the pane's rows."""


def place_details(width: int, height: int, *, rows: int | None, words: int, pane: str) -> Place:
    """Beside the pane if there is enough width, below it if there is enough height.

    Parameters
    ----------
    width, height:
        Size of the screen in columns and lines.
    rows:
        Number of ranks that the pane draws; None until known.
    words:
        Lines of the verdict after its first.
    pane:
        Name of the pane.
    """
    rows = _ROWS_AT_FIRST if rows is None else rows
    spare = height - _FRAME_LINES - (rows + 1) - 1 - words
    beside = width >= _SIDE_FROM
    fits = beside or (pane in ("timeline", "ranks") and spare >= _BELOW_FROM)
    return Place(beside, fits and pane not in ("details", "stacks", "late"), spare)
