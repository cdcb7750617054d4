"""Option types shared by several commands."""

from __future__ import annotations

import math
from typing import Any

import rich_click as click
from click.types import FloatParamType


class Number(FloatParamType):
    """A number from `low` to `high`; the help does not mention the limits."""

    name = "number"

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        if not self._low <= number <= self._high:
            self.fail(f"{value} is not between {self._low:.8g} and {self._high:.8g}.", param, ctx)
        return number


class Seconds(Number):
    """A number of seconds; its error message says so."""

    name = "number of seconds"


class Engine(click.ParamType):  # type: ignore[type-arg]
    """A number of processes, or the URL of a cluster's scheduler."""

    name = "engine"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        text = str(value)
        if text.isdecimal() and int(text) > 0:
            return int(text)
        if not text.startswith(("dask://", "ray://")):
            self.fail(f"{text!r} is neither a number, dask://HOST:PORT nor ray://HOST:PORT.")
        return text


def source_option(command: Any) -> Any:
    """Add ``--source``, which may be given several times, to a command that quotes source lines."""
    return click.option(
        "--source",
        multiple=True,
        type=click.Path(exists=True, file_okay=False),
        metavar="DIR",
        help="Also quote the job's source files below this directory; by default only those of a "
        "job recorded on this machine, from where it ran.",
    )(command)
