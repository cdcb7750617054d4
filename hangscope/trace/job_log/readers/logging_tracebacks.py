"""Tracebacks that Python's ``logging`` printed: the line above tells whose they are."""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import LogLine

_HEAD = "Traceback (most recent call last):"
_ERROR = re.compile(r"error|critical|exception|fail|fatal", re.I)
_LONGEST = 120
"""Lines of one traceback, at the most."""


class Logged:
    """Gives a traceback to the writer of the line above it.

    Python's ``logging`` puts its prefix in front of the message only: the traceback that follows
    has none, down to the line that names the exception.
    """

    def __init__(self) -> None:
        self._before: LogLine | None = None
        self._writer: LogLine | None = None

    def attributed(self, line: LogLine) -> LogLine:
        """The line as its writer's."""
        before, self._before = self._before, line
        if line.rank is not None:
            self._writer = line if line.text.rstrip().endswith(_HEAD) else None
            return line
        if line.level or line.pid is not None:
            self._writer = None
            return line
        if before is not None and line.text.startswith(_HEAD) and _announces(before, line):
            self._writer = before
        if self._writer is None or line.number > self._writer.number + _LONGEST:
            return line
        writer = self._writer
        if line.text[:1] not in " \t" and not line.text.startswith(_HEAD):
            self._writer = None  # the line with the exception is the last
        return line._replace(rank=writer.rank)


def _announces(before: LogLine, head: LogLine) -> bool:
    """Whether a line is what ``logging`` put in front of the head of a traceback.

    A message of torch's own is whole, and so is what its hook prints; what bears another number is
    another writer's.
    """
    return (
        before.rank is not None
        and before.number == head.number - 1
        and not (before.level or before.excepthook)
        and head.local_rank in (None, before.local_rank)
        and head.node in (None, before.node)
        and _ERROR.search(before.text) is not None
    )
