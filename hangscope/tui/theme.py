"""Colours of the application, dark and light; the same as in the HTML page."""

from __future__ import annotations

from textual.theme import Theme

CULPRIT = "#ff8a4c"
"""Also for everything else that is wrong. Lighter than in the page, for the dark background."""
WAITING = "#e69f00"
NOTICE = "#f0b429"
"""Keys, marks and remarks."""
GOOD = "#3ecf9b"
GROUND = "#14171c"
SELECTED = "#1f252d"
COLUMN = "#2a313b"
"""Background of the column under the cursor."""

DARK = Theme(
    name="hangscope-dark",
    primary="#7db8ff",
    secondary="#98a3b3",
    accent="#7db8ff",
    foreground="#e6e9ee",
    background=GROUND,
    surface=GROUND,
    panel=SELECTED,
    success=GOOD,
    warning=NOTICE,
    error=CULPRIT,
    dark=True,
    variables={
        "footer-key-foreground": NOTICE,
        "footer-background": SELECTED,
        "footer-description-foreground": "#98a3b3",
    },
)

LIGHT = Theme(
    name="hangscope-light",
    primary="#0b5cad",
    secondary="#5a6472",
    accent="#0b5cad",
    foreground="#1b1f24",
    background="#ffffff",
    surface="#ffffff",
    panel="#edf0f4",
    success="#00734f",
    warning="#8a6100",
    error="#c1440e",
    dark=False,
    variables={"footer-key-foreground": "#c1440e", "footer-background": "#edf0f4"},
)
