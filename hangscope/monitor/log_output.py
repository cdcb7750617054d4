"""Prints reports and single lines into the job's log."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from hangscope.diagnosis.model import Diagnosis
from hangscope.report.escape import plain
from hangscope.report.safe_console import SafeConsole
from hangscope.report.text import render

LOG_WIDTH = 100


def print_report(diagnosis: Diagnosis, *, where: str, out: TextIO | None = None) -> None:
    """Print a report, introduced by a line that begins with ``[hangscope]``.

    One write, so that lines of the ranks cannot end up inside it. It begins with a line break
    because the job may have stopped in the middle of a line (a progress bar, a prompt).
    """
    stream = out or sys.stderr
    body = io.StringIO()
    colour = stream.isatty() and not os.environ.get("NO_COLOR")
    console = SafeConsole(
        file=body,
        width=LOG_WIDTH,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(render(diagnosis))
    summary = plain(diagnosis.headline)
    report = body.getvalue().rstrip()
    text = f"\n[hangscope] {summary}\n{report}\n[hangscope] {plain(where)}\n"
    _write(stream, text)


def print_line(message: str, out: TextIO | None = None) -> None:
    """Print one line. The message may come from a file or another node, so it is made harmless."""
    _write(out or sys.stderr, f"[hangscope] {plain(message)}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        pass  # the job's log is closed
