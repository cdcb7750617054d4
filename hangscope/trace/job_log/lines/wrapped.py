"""Rejoins what a terminal wrapped at its width before the log was copied: lines, and messages of a
watchdog whose end shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

STARTS = re.compile(
    r"\s*(?:\[rank ?\d|\[[EWIF]\d{3,4} |\[[EWIF] |[EWIF]\d{4} \d\d:|Traceback"
    r"|Exception raised|frame #|\[default\d|\[hangscope\]|\d{4}-\d\d-\d\d|\(\w+ pid="
    r"|[\w\-.]+:\d+:\d+ \[|terminate called|srun: |slurmstepd: |[=\-]{20,}$)"
)
_OPEN = re.compile(
    r"(?:Watchdog caught|Caught collective operation|Work(?:NCCL|HCCL)\()"
    r"(?!.*(?:before\s*timing\s*out|timed\s*out\s*in))",
    re.S,
)
_OPEN_STATUS = re.compile(
    r"(?:detected by watchdog at work|Timeout at NCCL work|Last enqueued NCCL work)"
    r"(?!.*last\s*completed\s*(?:NCCL\s*)?work:\s*-?\d)",
    re.S,
)
_OPEN_MISMATCH = "Detected mismatch between collectives"
_BOTH_SIDES = re.compile(
    r"inconsistent\s*collective:|but\s*Rank\s*\d+\s*is\s*running\s*collective:"
)
_OPEN_LABEL = re.compile(r"\[(?:Rank ?\d*|PG ?[^\]\[]{0,80}|rank\d*)$")
_MAX_JOIN = 8
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


def unwrap(lines: Iterable[tuple[int, str]], width: int) -> Iterator[tuple[int, str]]:
    """The lines, with the pieces of torch's messages joined."""
    held: tuple[int, str] | None = None
    pieces = lost = 0
    for number, text in lines:
        piece = text.rstrip()
        whole = held is not None and _WHOLE.search(held[1]) and not text.strip().isdecimal()
        if held is not None and pieces < _MOST_PIECES and not (whole or STARTS.match(text)):
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


class MessageJoiner:
    """Holds back a message while the next line may continue it."""

    def __init__(self) -> None:
        self._held: tuple[int, str] | None = None
        self._absorbed = 0

    @property
    def waits(self) -> bool:
        """Whether a message is held back."""
        return self._held is not None

    def put(self, number: int, text: str) -> Iterator[tuple[int, str]]:
        """The messages that are complete with this line."""
        if self._held is not None:
            if self._absorbed < _MAX_JOIN and not STARTS.match(text):
                self._held = (self._held[0], self._held[1].rstrip() + text.rstrip())
                self._absorbed += 1
            else:
                yield self._held
                self._held = None
        if self._held is None:
            self._held, self._absorbed = (number, text), 0
        if not is_open(self._held[1]):
            yield self._held
            self._held = None

    def rest(self) -> Iterator[tuple[int, str]]:
        """The message held back at the end of the log."""
        if self._held is not None:
            yield self._held


def is_open(text: str) -> bool:
    """Whether a message continues after the end of this text."""
    return bool(
        ("ork" in text and (_OPEN.search(text) or _OPEN_STATUS.search(text)))
        or ("Watchdog" in text and _OPEN.search(text))
        or (_OPEN_MISMATCH in text and _is_half_a_mismatch(text))
        or _OPEN_LABEL.search(text.rstrip())
    )


def _is_half_a_mismatch(text: str) -> bool:
    """Whether a comparison of two fingerprints continues after this line."""
    found = _BOTH_SIDES.search(text)
    if not found:
        return True
    last = text[found.end() :]
    return "CollectiveFingerPrint(" not in last or last.count("(") > last.count(")")
