"""Detects logs that are only an excerpt, as people paste them.

All watchdogs print the same lines when they give up. An excerpt that begins or ends between the
lines of one rank lacks some that all other ranks have printed.
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.line_shapes import ShapeCache
from hangscope.trace.job_log.lines.wrapped import is_open

_LABEL = re.compile(r"\[(?:PG|Rank)[^\]]{0,120}\]")
_GAVE_UP = "Watchdog caught collective"
_SENTENCES = (
    "To avoid data inconsistency, we are taking the entire process down.",
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
    "kernels, subsequent GPU operations might run on corrupted/incomplete data.",
)
"""What watchdogs print about themselves."""
_FEWEST_LETTERS = 6
_HALF_A_HEAD = re.compile(r"(?:\[r(?:a(?:n(?:k\d*)?)?)?\]?:?)?(?:\[(?:[EWIF][\d :.]*)?)?")
_TAIL = re.compile(
    r"ran for \d{1,12} milliseconds before timing out\.$|"
    r"last completed (?:NCCL )?work: -?\d{1,20}\.?$"
)
"""How the lines of a watchdog end that tell a timeout."""
_FRAME = re.compile(r"#\d+ \S.{0,400} from \S")
_OF_ERROR = re.compile(rb"frame #\d+: .|Exception raised from .|ncclRemoteError: |Last error:\s*$")
_FEWEST = 2
"""How many other ranks must have printed a kind of line."""
_MOST_KINDS = 24
_MOST_RANKS = 4096


class TruncationDetector:
    """Tracks which kinds of lines the watchdog of each rank has printed."""

    def __init__(self) -> None:
        self._of_shape = ShapeCache(_kind)
        self._kinds: dict[int, set[str]] = {}
        self._first: int | None = None
        """The rank whose watchdog printed the log's first line."""
        self._last: tuple[int, int] | None = None
        """The rank and number of the newest line."""
        self._begins_inside = False
        """The log's first line is the end of a watchdog's line."""

    def note(self, line: LogLine) -> None:
        """Record one line."""
        if line.number == 1:
            headless = line.rank is None and not line.level and _LABEL.search(line.text) is None
            self._begins_inside = headless and _TAIL.search(line.text.rstrip()) is not None
        if line.level != "E" or line.rank is None or not line.file.startswith("ProcessGroup"):
            return
        kind = self._of_shape[line.shape]
        if "0" in kind or not line.shape:  # lines of one shape may differ in their digits
            kind = _kind(line.text)
        self._last = line.rank, line.number
        if self._first is None:
            self._first = line.rank
        if line.rank in self._kinds or len(self._kinds) < _MOST_RANKS:
            kinds = self._kinds.setdefault(line.rank, set())
            if len(kinds) < _MOST_KINDS:
                kinds.add(kind)

    def is_truncated(self, newest: LogLine) -> bool:
        """Whether the log, whose last line is ``newest``, was cut at its end or its beginning."""
        said = _LABEL.sub("", newest.text).strip()
        if self._begins_inside:
            return True
        if len(said) >= _FEWEST_LETTERS and any(
            s != said and s.startswith(said) for s in _SENTENCES
        ):
            return True
        first, last = self._first, self._last
        if first is None or last is None:
            return False
        # Stack frames have no rank; they belong to the watchdog that printed last.
        inside = last[1] == newest.number or _FRAME.match(newest.text) is not None
        if inside and self._lacks(last[0]):
            return True
        return _GAVE_UP not in self._kinds[first] and self._lacks(first)

    def _lacks(self, rank: int) -> bool:
        """Whether a rank has not printed what all other ranks whose watchdog gave up have."""
        own = self._kinds.get(rank, set())
        others = [kinds for r, kinds in self._kinds.items() if r != rank and _GAVE_UP in kinds]
        common = set.intersection(*others) if len(others) >= _FEWEST else set()
        # A rank that was only signalled prints other lines and none of these.
        return bool(common & own) and not common <= own


def is_unfinished(text: str) -> bool:
    """Whether the last line of a log is the beginning of a watchdog's line."""
    return _HALF_A_HEAD.fullmatch(text.strip()) is not None or is_open(text)


def is_of_an_error(first: bytes) -> bool:
    """Whether the first line of a log belongs to a message of which the beginning is missing: an
    error of torch's in C++, which goes on below its first line."""
    return _OF_ERROR.match(first) is not None


def _kind(text: str) -> str:
    """The first words of a message, without its label."""
    return " ".join(_LABEL.sub(" ", text[:400]).split()[:3])
