"""Consoles and progress bars of the commands: data on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import rich_click as click

from hangscope.report.escape import plain, visible, visible_json
from hangscope.report.safe_console import SafeConsole

SHOW_AFTER_S = 1.0


def say(text: str, *, end: str = "\n", err: bool = False) -> None:
    """Print text, escaped, on stdout or stderr: the one way for what no console prints."""
    click.echo(visible(text) + end, nl=False, err=err)


def say_json(document: bytes) -> None:
    """Print a JSON document on stdout, escaped."""
    sys.stdout.buffer.write(visible_json(document) + b"\n")
    sys.stdout.buffer.flush()


def say_warnings(warnings: Iterable[str]) -> None:
    """Print what was left out of a job's files, and other doubts, on stderr."""
    for warning in warnings:
        say(f"hangscope: {plain(warning, 500)}", err=True)


def say_if_possible(line: str) -> None:
    """Print a line on stderr, if that is open; otherwise only the exit status tells."""
    with contextlib.suppress(OSError):
        say(" ".join(line.split("\n")), err=True)


def stdout_console(*, no_color: bool = False) -> SafeConsole:
    """A console on stdout that respects NO_COLOR, FORCE_COLOR and pipes."""
    plain = no_color or bool(os.environ.get("NO_COLOR"))
    force = bool(os.environ.get("FORCE_COLOR")) and not plain
    piped = not sys.stdout.isatty()
    return SafeConsole(
        no_color=plain,
        force_terminal=True if force else (False if plain else None),
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=False,
        width=_columns() if piped else None,
    )


def _columns() -> int:
    """The width given by COLUMNS, if that is a sensible number."""
    wanted = os.environ.get("COLUMNS", "")
    return max(40, int(wanted)) if wanted.isdecimal() and int(wanted) else 100


class Progress:
    """A progress bar on stderr that appears only when the work takes longer than a second."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._began_s = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def update(self, done: int, total: int) -> None:
        """``done`` of ``total`` files are read."""
        if self._bar is None:
            if not sys.stderr.isatty() or time.monotonic() - self._began_s < SHOW_AFTER_S:
                return
            from rich.progress import Progress as Bar  # imported only for long work
            from rich.progress import SpinnerColumn

            # A single large log reports no progress until its end, so a spinner shows activity.
            columns = (SpinnerColumn(), *Bar.get_default_columns())
            self._bar = Bar(*columns, console=SafeConsole(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._label)
        self._bar.update(self._task, completed=done, total=total)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
