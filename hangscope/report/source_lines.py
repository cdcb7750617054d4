"""The source behind a frame, where it can be read on this machine.

A file name in a dump may have been written by anybody, and a report may leave the machine: only
regular Python files of a sensible size are opened, so that no dump can make a report quote keys or
wait on a pipe.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from typing import NamedTuple

from hangscope.report.escape import plain
from hangscope.trace.model import Frame

_SUFFIXES = (".py", ".pyx", ".pyi")
_MAX_BYTES = 4 << 20


class SourceLine(NamedTuple):
    """One line of a file, counted from 1, its text made safe to show."""

    number: int
    text: str


def source_line(frame: Frame) -> str:
    """The stripped line that `frame` stands at; empty where it cannot be read."""
    lines = _lines(frame.filename)
    if not 1 <= frame.line <= len(lines):
        return ""
    return plain(lines[frame.line - 1].strip(), 300)


def excerpt(frame: Frame, before: int = 4, after: int = 4) -> tuple[SourceLine, ...]:
    """The lines around `frame` without their common indent; empty where they cannot be read."""
    lines = _lines(frame.filename)
    if not 1 <= frame.line <= len(lines):
        return ()
    first = max(1, frame.line - before)
    last = min(len(lines), frame.line + after)
    while first < frame.line and not lines[first - 1].strip():
        first += 1
    while last > frame.line and not lines[last - 1].strip():
        last -= 1
    shown = [lines[n - 1].expandtabs(4).rstrip() for n in range(first, last + 1)]
    indent = min((len(s) - len(s.lstrip()) for s in shown if s), default=0)
    return tuple(SourceLine(first + i, plain(s[indent:], 300)) for i, s in enumerate(shown))


@lru_cache(maxsize=256)
def _lines(path: str) -> tuple[str, ...]:
    if not path.endswith(_SUFFIXES) or "\0" in path:
        return ()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError, UnicodeError):
        return ()
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return ()
        with open(descriptor, "rb", closefd=False) as file:
            return tuple(file.read(_MAX_BYTES).decode("utf-8", "replace").split("\n"))
    except OSError:
        return ()
    finally:
        os.close(descriptor)
