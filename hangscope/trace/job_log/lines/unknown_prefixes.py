"""Strips unknown prefixes from tracebacks, whose lines all begin with the same one.

A job's own logger, ``grep -r``, ``stern`` and hundreds of others put something in front of every
line. A traceback reveals it, because Python itself prints nothing before "Traceback".
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.line_shapes import shape_of

HEAD = "Traceback (most recent call last):"
_LONGEST = 160
_MOST = 8
"""How many prefixes are kept per log; the newest ones count."""
_NEAR = 120
"""How many lines after the head of a traceback may belong to it."""
_RANK = re.compile(
    r"(?<![A-Za-z])(?<!local[ _\-])(?<!node[ _\-])(?<!machine[ _\-])(?<!\b[tpdec]p[ _\-])"
    r"rank[ ]?[=:_\-#]?[ ]?(\d{1,7})(?!\d|\.\d)",
    re.IGNORECASE,
)
_HOST = re.compile(r"([A-Za-z][\w.\-]{1,62}): ")
_NO_PREFIX = re.compile(r"^\s|[\^│┃╭─]|\w\s*\($|traceback\s*:\s*$")
"""Indented text (part of a report), Ctrl-C as echoed by a terminal, boxes, and quotations."""


class UnknownPrefixes:
    """Strips such prefixes, and keeps the rank that they state."""

    def __init__(self) -> None:
        self._shapes: list[str] = []
        self._until = 0

    def taken_off(self, line: LogLine) -> LogLine:
        """The line without its prefix, if it begins with a known one."""
        text = line.text
        if "Traceback" in text:
            self._learn(line)
        elif line.number > self._until:
            return line
        for shape in self._shapes:
            before = text[: len(shape)]
            if len(text) > len(shape) and shape_of(before) == shape:
                return _without(before, line)
        return line

    def _learn(self, line: LogLine) -> None:
        """Record what precedes the head of a traceback."""
        at = line.text.find(HEAD)
        if at < 0 or line.text[at:].rstrip() != HEAD:
            return
        before = line.text[:at]
        self._until = line.number + _NEAR
        if not before or at > _LONGEST or _NO_PREFIX.search(before):
            return
        shape = shape_of(before)
        if shape not in self._shapes:
            self._shapes = [shape, *self._shapes][:_MOST]


def _without(before: str, line: LogLine) -> LogLine:
    line = line.saying(line.text[len(before) :])
    rank, host = _RANK.search(before), _HOST.fullmatch(before)
    if line.rank is None and rank is not None:
        return line._replace(rank=int(rank[1]), printed=True)
    return line if host is None else line._replace(host=line.host or host[1])
