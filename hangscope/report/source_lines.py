"""Source lines of stack frames, if the files can be read on this machine.

A file name in a dump is untrusted, and a report may leave the machine. Only regular Python files of
a sensible size are opened, so that no dump can make a report quote secrets or block on a pipe.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from hangscope.report.escape import plain
from hangscope.trace.files.source_text import decode_source
from hangscope.trace.model import Frame

_SUFFIXES = (".py", ".pyx", ".pyi")
_MAX_BYTES = 4 << 20


class SourceLine(NamedTuple):
    """One line of a file: its number (from 1) and its text, safe to show."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a job's frames, as the job has run them.

    No lines are shown from a file that was changed after the job began.
    """

    began_ns: int = 0
    """When the job began; 0 if not known."""

    def line(self, frame: Frame) -> str:
        """The stripped source line of `frame`; empty if it cannot be read."""
        lines = self._lines(frame)
        if not 1 <= frame.line <= len(lines):
            return ""
        return plain(lines[frame.line - 1].strip(), 300)

    def excerpt(self, frame: Frame, before: int = 4, after: int = 4) -> tuple[SourceLine, ...]:
        """The dedented lines around `frame`; empty if they cannot be read."""
        lines = self._lines(frame)
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

    def changed(self, frame: Frame) -> bool:
        """Whether the file of `frame` exists here but has changed since the job began."""
        return 0 < self.began_ns < _read(frame.filename).changed_ns

    def _lines(self, frame: Frame) -> tuple[str, ...]:
        return () if self.changed(frame) else _read(frame.filename).lines


class _File(NamedTuple):
    lines: tuple[str, ...] = ()
    changed_ns: int = 0


@lru_cache(maxsize=256)
def _read(path: str) -> _File:
    if not path.endswith(_SUFFIXES) or "\0" in path:
        return _File()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError, UnicodeError):
        return _File()
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return _File()
        with open(descriptor, "rb", closefd=False) as file:
            source = file.read(_MAX_BYTES)
        return _File(tuple(decode_source(source).split("\n")), status.st_mtime_ns)
    except OSError:
        return _File()
    finally:
        os.close(descriptor)
