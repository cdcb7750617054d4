"""Torch elastic's failure table, which describes one process in several lines."""

from __future__ import annotations

import re

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.prefixes import moment_ns
from hangscope.trace.model import ClaimDetails

_HOST = re.compile(r"^\s*host\s*: (\S+)")
_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: (\d+)\)")
_TIME = re.compile(r"^\s*time\s*: \d{4}-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d)")
_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d+)(?: \(pid: (\d+)\)|\s*$)")
_TRACE = re.compile(r"^\s*traceback\s*: (.*)")
_JOINED = re.compile(r"^(?:\[\d+\]:)?\s*(?=time\s*: .{19,40} host\s*: \S+ rank\s*: )")
_FIELD = re.compile(r" (?=(?:host|rank|exitcode|error_file|traceback)\s*: )")
"""A whole entry in one line, as collectors join the lines of a message, and where to part it."""
_NEXT = re.compile(r"^\s*(?:\[\d+\]:|-{5,}|={5,})")
_PART = re.compile(r"^\s*(?:(Failures):|Root Cause\b)")
"""The first process that failed stands last, below a heading of its own."""
HEADS = (" (local_rank: ", "ailures:", "Root Cause", "time      :", "exitcode  :")
_QUOTED = "Traceback (most recent call last)"
FORM = re.compile(
    r"^\s*(?:time|host|rank)\s+:|^(?:\[\d+\]:)?\s*time\s*: |"
    r"^\s*(?:Failures:|Root Cause\b)"
)
"""The beginning of a line in a new entry."""


class ElasticTable:
    """Follows the table line by line."""

    def __init__(self, year: int) -> None:
        self.rank: int | None = None
        self.host: str | None = None
        self._year = year
        """The year of all lines: those outside the table state none."""
        self._at_ns = 0
        self._status_told = False
        self._quotes = False
        """Whether the next lines are the traceback from the process's error file."""
        self._open: LogLine | None = None
        """The heading of a table that has not told yet which process failed first."""
        self._told = 0
        """How many it has told of so far."""
        self._later: set[int] = set()
        """The ranks of which it has told that they failed."""

    def attributed(self, line: LogLine) -> LogLine:
        """The line, with the rank whose traceback the table is quoting."""
        if self.rank is None or line.rank is not None:
            return line
        found = _TRACE.match(line.text)
        if found and found.group(1).startswith(_QUOTED):
            self._quotes = True
            line = line.saying(found.group(1))
        if not self._quotes:
            return line
        if _NEXT.match(line.text):
            self._quotes, self.rank = False, None
            return line
        return line.saying(line.text.removeprefix("  "))._replace(rank=self.rank, printed=True)

    def follows(self, line: LogLine) -> bool:
        """Whether the line may continue the table."""
        return self.rank is not None

    def read(self, line: LogLine, attempt: Attempt) -> bool:
        """Record one line of the table. Returns whether it was one."""
        text = line.text
        joined = _JOINED.match(text)
        if joined:
            for field in _FIELD.split(text[joined.end() :]):
                self._field(line.saying(field), attempt)
            self.rank = None
            return True
        found = _PART.match(text)
        if found:
            self._open, self.rank = line if found.group(1) else None, None
            self._later.clear()
            self._told *= self._open is None
            return False  # other reports have such headings, too
        return self._field(line, attempt)

    def _field(self, line: LogLine, attempt: Attempt) -> bool:
        """Record one field of an entry. Returns whether it was one."""
        text = line.text
        if found := _TIME.match(text):
            month, day, *clock = map(int, found.groups())
            self._at_ns = moment_ns(self._year, month * 100 + day, *clock)
        elif found := _HOST.match(text):
            self.host = found.group(1)
        elif found := _RANK.match(text):
            self.rank, self._status_told = int(found.group(1)[:8]), False
            notes = attempt.of(self.rank)
            notes.local_rank = int(found.group(2)[:8])
            notes.host = notes.host or self.host
        elif self.rank is None:
            return False
        elif found := _EXIT.match(text):
            self._ended(self.rank, found, line, attempt)
        elif found := _TRACE.match(text):
            notes = attempt.of(self.rank)
            if "To enable traceback" not in found.group(1):
                notes.exit_text = notes.exit_text or found.group(1).strip()[:300]
            self.rank = None
        else:
            return False
        return True

    def _ended(self, rank: int, found: re.Match[str], line: LogLine, attempt: Attempt) -> None:
        notes = attempt.of(rank)
        if found.group(2):
            notes.pid = int(found.group(2)[:9])
            attempt.processes.is_told(rank, notes.pid, line.machine)
        # The table says when it happened; the lines around it, when it was printed.
        notes.exit_ns = self._at_ns or notes.exit_ns
        notes.ended(int(found.group(1)[:6]), line.at_ns)
        self._at_ns, self._status_told = 0, True
        self._told += 1
        self._later.add(rank)

    def finish(self, attempt: Attempt) -> None:
        """Note what a table says whose end is cut off: whoever is listed beside others has failed.

        The process that failed first stands last: without it, the others may have failed of it.
        """
        if self.rank is not None and not self._status_told and self._told:
            told = "torchrun lists it among those that failed"
            attempt.of(self.rank).died(self._at_ns, told)
        if self._open is not None and self._later:
            ranks = tuple(self._later)
            attempt.claim(
                "other", self._open, certain=False, details=ClaimDetails(failed_later=ranks)
            )
