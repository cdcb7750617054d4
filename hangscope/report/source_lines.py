"""Source lines of stack frames, if the files are the job's own.

A file name in a dump is untrusted, and a report may leave the machine. Only regular Python files of
a sensible size are quoted, if they belong to the user or root and lie in a directory of the job:
one that a job recorded here has worked in or was started from, or one that the user names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from hangscope.diagnosis.model import Diagnosis
from hangscope.diagnosis.processes.stacks import is_library
from hangscope.report.escape import plain
from hangscope.trace.files.regular_files import is_own, open_descriptor
from hangscope.trace.files.source_text import decode_source
from hangscope.trace.model import Frame, Stack
from hangscope.trace.rings.recorded_here import working_directories

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
    directories: tuple[str, ...] = ()
    """Absolute paths, without links, of where files may be quoted from."""

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> Sources:
        """The sources of a diagnosed job; none of a job that was not recorded on this machine."""
        places = [os.path.realpath(place) for place in diagnosis.source_directories]
        worked_in = working_directories(diagnosis.sources)
        if worked_in is not None:
            scripts = (os.path.dirname(name) for name in _main_scripts(diagnosis))
            places += [os.path.realpath(p) for p in (*worked_in, *scripts) if os.path.isabs(p)]
        return cls(diagnosis.began_ns, tuple(dict.fromkeys(p for p in places if p != "/")))

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
        return 0 < self.began_ns < self._file(frame).changed_ns

    def _lines(self, frame: Frame) -> tuple[str, ...]:
        return () if self.changed(frame) else self._file(frame).lines

    def _file(self, frame: Frame) -> _File:
        return _read(frame.filename, self.directories)


class _File(NamedTuple):
    lines: tuple[str, ...] = ()
    changed_ns: int = 0


@lru_cache(maxsize=256)
def _read(path: str, directories: tuple[str, ...]) -> _File:
    if not path.endswith(_SUFFIXES) or not os.path.isabs(path):
        return _File()
    try:
        folder, name = os.path.split(path)
        folder = os.path.realpath(folder)
        if not any(folder == place or folder.startswith(f"{place}/") for place in directories):
            return _File()
        descriptor = open_descriptor(os.path.join(folder, name), follow_links=False)
    except (OSError, ValueError):
        return _File()
    try:
        status = os.fstat(descriptor)
        if not _may_be_quoted(status):
            return _File()
        with open(descriptor, "rb", closefd=False) as file:
            source = file.read(_MAX_BYTES)
        return _File(tuple(decode_source(source).split("\n")), status.st_mtime_ns)
    except OSError:
        return _File()
    finally:
        os.close(descriptor)


def _may_be_quoted(status: os.stat_result) -> bool:
    return is_own(status.st_uid) and stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES


def _main_scripts(diagnosis: Diagnosis) -> Iterator[str]:
    """The files in which the ranks' main threads began; of processes that others of the job have
    started, those of the functions with which they began."""
    for stack in _stacks(diagnosis):
        began = next((frame for frame in reversed(stack) if frame.name == "<module>"), None)
        if began is None or not os.path.isabs(began.filename):
            began = next((frame for frame in reversed(stack) if not is_library(frame)), None)
        if began is not None:
            yield began.filename


def _stacks(diagnosis: Diagnosis) -> Iterator[Stack]:
    yield from (report.stack for report in diagnosis.ranks)
    for finding in diagnosis.findings:
        yield from (side.stack for side in finding.sides)
