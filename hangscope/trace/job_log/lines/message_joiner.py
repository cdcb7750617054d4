"""Joins watchdog messages that a terminal wrapped."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
