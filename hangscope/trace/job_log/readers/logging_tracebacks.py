"""Tracebacks printed by Python's ``logging``: the line above states whose they are."""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import LogLine

_HEAD = "Traceback (most recent call last):"
_ERROR = re.compile(r"error|critical|exception|fail|fatal", re.I)
_LONGEST = 120
"""Maximum number of lines of one traceback."""


class LoggingTracebacks:
    """Attributes a traceback to the writer of the line above it.

    Python's ``logging`` prefixes only the message: the lines of the traceback after it, up to the
    one with the exception, have no prefix.
    """

    def __init__(self) -> None:
        self._before: LogLine | None = None
        self._writer: LogLine | None = None

    def attributed(self, line: LogLine) -> LogLine:
        """The line with its writer's rank."""
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
            self._writer = None  # the line with the exception is the last one
        return line._replace(rank=writer.rank)


def _announces(before: LogLine, head: LogLine) -> bool:
    """Whether a line is the ``logging`` message that belongs to the head of a traceback.

    Messages from torch and its excepthook are complete in themselves; a line with another local
    rank or node is from another writer.
    """
    return (
        before.rank is not None
        and before.number == head.number - 1
        and not (before.level or before.excepthook)
        and head.local_rank in (None, before.local_rank)
        and head.node in (None, before.node)
        and _ERROR.search(before.text) is not None
    )
