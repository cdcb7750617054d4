"""Colours for terminals with sixteen colours, chosen by hand instead of by distance.

By distance, two kinds of operations would get the same colour, and the background of the selected
row would become black.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

from rich.color import Color as RichColor
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

_EXACT = {
    "#3d9be0": "#5555ff",  # reduce: bright blue
    "#1fb587": "#00aa00",  # gather: green
    "#7cc8f0": "#55ffff",  # scatter: bright cyan
    "#d78fb8": "#ff55ff",  # all-to-all: bright magenta
    "#cfc04a": "#aa5500",  # broadcast: brown
    "#a5abb5": "#aaaaaa",  # barrier: grey
    "#a48be8": "#aa00aa",  # send/recv: magenta
    "#8593a6": "#00aaaa",  # other: cyan
    "#e69f00": "#ffff55",  # waiting: bright yellow
    "#f0b429": "#ffff55",
    "#ff8a4c": "#ff5555",  # culprit: bright red
    "#d55e00": "#ff5555",
    "#3ecf9b": "#55ff55",
    "#1f252d": "#555555",  # the selected row
    "#2a313b": "#555555",
    "#14171c": "#000000",
    "#e6e9ee": "#ffffff",
    "#98a3b3": "#aaaaaa",
}


def _triplet(text: str) -> ColorTriplet:
    return ColorTriplet(int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16))


_TABLE = {_triplet(a): RichColor.from_triplet(_triplet(b)) for a, b in _EXACT.items()}


def has_few_colours(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal claims to have sixteen colours or fewer."""
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return False
    name = environment.get("TERM", "").lower()
    return not any(word in name for word in ("256", "kitty", "direct", "truecolor", "ghostty"))


class FewColours(LineFilter):
    """Maps each of the application's colours to one of the sixteen."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, _mapped(style), control) if style is not None else Segment(text)
            for text, style, control in segments
        ]


@lru_cache(4096)
def _mapped(style: Style) -> Style:
    def choose(colour: RichColor | None) -> RichColor | None:
        if colour is None or colour.triplet is None:
            return colour
        return _TABLE.get(colour.triplet, colour)

    return style + Style.from_color(choose(style.color), choose(style.bgcolor))
