"""Rejoins lines that a terminal wrapped at its width before the log was copied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_NARROWEST, _WIDEST = 40, 300
_ENOUGH = 3
"""How many lines must end at the terminal's edge."""
_LOST_BLANKS = 2
"""How many trailing blanks copying may have dropped at the edge."""
_MOST_PIECES = 16
_MESSAGE = re.compile(rb"\[rank ?\d{1,7}\]:\[[EWIF]|\[[EWIF]\d{3,4} \d\d:|ProcessGroup")
_WHOLE = re.compile(
    r"(?:before timing out\.|last completed (?:\w+ )?work: -?\d+\.?|entire process down\.|"
    r"incomplete data\.)$"
)
"""The end of a complete watchdog message: those of all ranks often have one length without having
been wrapped."""
_MESSAGE_TEXT = re.compile(_MESSAGE.pattern.decode())


def wrap_width(head: bytes) -> int:
    """The width at which a terminal has wrapped the lines of a log; 0 if none seems to have.

    No line is longer, several end there, and one of those is a message of torch's own logging,
    whose lines are longer than any terminal is wide.
    """
    lines = [line.rstrip() for line in head.split(b"\n")[:2000]]
    width = max(map(len, lines), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return 0
    full = [line for line in lines if len(line) >= width - _LOST_BLANKS]
    return width if len(full) >= _ENOUGH and any(map(_MESSAGE.search, full)) else 0


def unwrap(
    lines: Iterable[tuple[int, str]], width: int, starts: re.Pattern[str]
) -> Iterator[tuple[int, str]]:
    """The lines, with the pieces of torch's messages joined; ``starts`` matches a new message."""
    if not width:
        yield from lines
        return
    held: tuple[int, str] | None = None
    pieces = lost = 0
    for number, text in lines:
        piece = text.rstrip()
        whole = held is not None and _WHOLE.search(held[1]) and not text.strip().isdecimal()
        if held is not None and pieces < _MOST_PIECES and not (whole or starts.match(text)):
            held = (held[0], held[1] + " " * lost + piece)
            pieces += 1
        else:
            if held is not None:
                yield held
            held, pieces = (number, piece), 1
        lost = width - len(piece)
        if not 0 <= lost <= _LOST_BLANKS or not _MESSAGE_TEXT.search(held[1]):
            yield held
            held = None
    if held is not None:
        yield held
