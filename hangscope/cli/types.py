"""Types of options that more than one command has."""

from __future__ import annotations

import math
from typing import Any

import rich_click as click


class Number(click.FloatRange):
    """A range without ``nan``, which no comparison finds outside of it."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return number


class Seconds(Number):
    """A range whose complaint speaks of seconds."""

    name = "number of seconds"
