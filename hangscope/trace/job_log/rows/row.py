"""One kind of line: how it is recognised, what it states, and lines from real logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

from hangscope.trace.job_log.evidence.attempt import Attempt, rank_ranges
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.rows.literals import literals_of

STATEMENTS = (
    "timeout", "counters", "own error", "lost peer", "missing ranks", "mismatch", "world",
    "process", "end", "stopped", "restart", "remark",
)  # fmt: skip
"""What lines state. ``process``: which process has which rank. ``remark``: anything else."""

_SHORTEST = 4
"""Shorter literals occur in too many lines."""

Report = Generator[bool, LogLine, None]
"""A report of several lines: sent one line after another, it yields whether that was one of its
lines. It ends where its last line is clear."""


class Said(NamedTuple):
    """A line that a row understands, and what was found in it."""

    line: LogLine
    found: re.Match[str]

    def text(self, group: str) -> str:
        """What a named group matched; empty if it did not take part."""
        told = self.found.groupdict().items()
        return next((text for name, text in told if text and name.split("__")[0] == group), "")

    def number(self, group: str, digits: int = 9) -> int | None:
        """The number that a named group matched; None if it did not take part. More digits are
        damage and are dropped."""
        text = self.text(group)[:digits]
        return int(text) if text else None

    def ranks(self, group: str) -> tuple[int, ...]:
        """The ranks in a list (``0, 2, 5-7``)."""
        return rank_ranges(self.text(group))


Note = Callable[[Said, Attempt], "bool | Report | None"]
"""Records what a line states. Returns whether no other row needs the line (None: yes), or the
report that it begins."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of line."""

    id: str
    states: str
    """One of `STATEMENTS`."""
    line: re.Pattern[str]
    """Searched for in the text of a line, without prefixes. Its named groups say how it numbers:
    ``rank`` is a rank of the job, ``place`` one inside a group, ``local`` one inside a node,
    ``task`` a scheduler's, ``pid`` a process."""
    note: Note
    examples: tuple[str, ...]
    since: str = ""
    """The first version that prints it, where known."""
    literals: tuple[str, ...] = ()
    """Every line of this kind contains one of these texts."""
    passing: bool = False
    """Whether lines of this kind are too frequent, and say too little, to be looked for: they
    count beside others only."""


def row(
    name: str,
    states: str,
    expressions: str | tuple[str, ...],
    note: Note,
    *examples: str,
    since: str = "",
    passing: bool = False,
) -> Row:
    """A row, with the literals of its expression; of several wordings, any is one of its lines, and
    groups of the same name mean the same.

    Raises
    ------
    ValueError
        If the expression requires no text of some length: every line would have to be tried.
    """
    wordings = (expressions,) if isinstance(expressions, str) else expressions
    apart = (re.sub(r"\(\?P<(\w+)>", rf"(?P<\1__{i}>", e) for i, e in enumerate(wordings[1:]))
    line = re.compile("|".join((wordings[0], *apart)), re.DOTALL)
    literals = literals_of(line)
    if min(map(len, literals), default=0) < _SHORTEST or states not in STATEMENTS:
        raise ValueError(f"row {name}: {states} {wordings}")
    return Row(name, states, line, note, examples, since, literals, passing)
