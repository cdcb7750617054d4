"""The fast path for ordinary lines: printable, whole, one message each, prefixes in front.

Where the message begins follows from the line's shape (`line_shapes`), and what the prefixes say
from their text. A log has few distinct shapes and prefixes, so each is worked out once. All other
lines take the slow path (`stream`), which unwraps, splits and joins them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from hangscope.trace.job_log.lines.blocks import MAX_LINE
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.line_shapes import ShapeCache
from hangscope.trace.job_log.lines.prefixes import Style
from hangscope.trace.job_log.lines.strip_prefixes import (
    HEAD,
    outer_prefixes,
    split_messages,
    strip,
    with_front,
    with_head,
)
from hangscope.trace.job_log.lines.wrapped import is_open

_FRACTION = re.compile(rb"(?<=[0-9]{2}:[0-9]{2}:[0-9]{2}[.,])[0-9]{1,9}")
_MOST_PREFIXES = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class _Plain:
    """The layout of ordinary lines of one shape."""

    message: int
    """Where the message begins."""
    head: int | None
    """Where the head that torch puts in front of the message begins, if any."""
    fraction: tuple[int, int]
    """The position of a fraction of a second in the prefixes; it is dropped from cache keys,
    because it would make every prefix unique."""
    shape: str
    """The message's shape."""


class FastPath:
    """Strips the prefixes of ordinary lines."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._plain = ShapeCache(partial(_plain, style))
        self._said: dict[tuple[_Plain, bytes], tuple[Any, ...]] = {}
        """The fields of `LogLine` after the first three, by prefix."""

    def line(self, number: int, raw: bytes, shape: bytes) -> LogLine | None:
        """The message of a line; None if it has to take the slow path."""
        plain = self._plain[shape]
        if plain is None:
            return None
        text = raw[plain.message :].rstrip().decode("ascii")
        if not plain.message:
            return LogLine(text, number, plain.shape)
        outer = plain.message if plain.head is None else plain.head
        said = self._outer(plain, raw, outer) if outer else ()
        if plain.head is None:
            return LogLine(text, number, plain.shape, *said)
        found = HEAD.match(raw[: plain.message].decode("ascii"), plain.head)
        assert found is not None
        return with_head(LogLine(text, number, plain.shape, *said), found, self._style.year)

    def _outer(self, plain: _Plain, raw: bytes, end: int) -> tuple[Any, ...]:
        begins, ends = plain.fraction
        key = (plain, raw[:begins] + raw[ends:end])
        said = self._said.get(key)
        if said is None:
            text = raw.decode("ascii").rstrip()
            if plain.head is None:
                line = strip(text, self._style, 0)
            else:
                line, rest = outer_prefixes(text, self._style)
                line = with_front(line, rest[: end - len(text) + len(rest)])
            assert line is not None
            said = line[3:]
            if len(self._said) >= _MOST_PREFIXES:
                self._said.clear()
            self._said[key] = said
        return said


def _plain(style: Style, shape: bytes) -> _Plain | None:
    """The layout of lines of a shape; None if they have to take the slow path."""
    if not shape.isascii() or len(shape) >= MAX_LINE:
        return None
    text = shape.decode("ascii").rstrip()
    if not text.isprintable() or text[:1] == "{" or "&" in text or "PID:" in text or is_open(text):
        return None
    parts = split_messages(text, style)
    line = strip(text, style, 0) if len(parts) == 1 else None
    if line is None or line.repeated or not text.endswith(line.text):
        return None
    message = len(text) - len(line.text)
    _, rest = outer_prefixes(text, style)
    if not text.endswith(rest):  # a launcher's tag within the message was taken out, too
        return None
    before = len(text) - len(rest)
    head = HEAD.search(rest)
    if head is not None and before + head.end() != message:
        return None
    start = None if head is None else before + head.start()
    fraction = _FRACTION.search(shape[: message if start is None else start])
    return _Plain(message, start, fraction.span() if fraction else (0, 0), line.text)
