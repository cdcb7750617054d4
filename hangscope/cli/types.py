"""Types of options that more than one command has."""

from __future__ import annotations

import rich_click as click


class Seconds(click.FloatRange):
    """A range whose complaint speaks of seconds."""

    name = "number of seconds"
