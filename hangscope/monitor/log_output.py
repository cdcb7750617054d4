"""How the monitor speaks: the text report, into the job's own log."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from rich.console import Console

from hangscope.diagnosis.model import Diagnosis
from hangscope.report.escape import plain
from hangscope.report.text import render

LOG_WIDTH = 100


def speak(diagnosis: Diagnosis, *, where: str, out: TextIO | None = None) -> None:
    """Print a report, introduced by a line that begins with ``[hangscope]``.

    It is written with one call, so that other ranks' lines do not land inside it, and begins with
    a line break: the job may have stopped in the middle of a line (a progress bar, a prompt).
    """
    stream = out or sys.stderr
    body = io.StringIO()
    colour = stream.isatty() and not os.environ.get("NO_COLOR")
    console = Console(
        file=body,
        width=LOG_WIDTH,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(render(diagnosis))
    summary = plain(diagnosis.summary)
    text = f"\n[hangscope] {summary}\n{body.getvalue().rstrip()}\n[hangscope] {where}\n"
    _write(stream, text)


def say(message: str, out: TextIO | None = None) -> None:
    """One line, whatever the message holds: it may come from a file or from another node."""
    _write(out or sys.stderr, f"[hangscope] {plain(message)}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        pass  # the job's log is gone; there is nobody to tell
