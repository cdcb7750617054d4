"""Colours of the application: dark and light, few, and the same as in the page."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="hangscope-dark",
    primary="#7db8ff",
    secondary="#98a3b3",
    accent="#7db8ff",
    foreground="#e6e9ee",
    background="#14171c",
    surface="#14171c",
    panel="#1f252d",
    success="#3ecf9b",
    warning="#f0b429",
    error="#ff8a4c",
    dark=True,
    variables={
        "footer-key-foreground": "#f0b429",
        "footer-background": "#1f252d",
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
