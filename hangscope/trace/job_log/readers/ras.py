"""Reports of NCCL's RAS subsystem (``ncclras``, ``ncclras -v``) inside a log.

RAS counts the operations that every rank of a communicator has launched. A communicator's ranks can
be mapped to those of the job only if it contains all of them.
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.lines.line import LogLine, Machine
from hangscope.trace.model import ClaimKind

_HEAD = re.compile(r"^\s*#(\d+)-(\d+) \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)")
_GPUS = re.compile(r"^\s+\d+\s+\d+\s+\d+\s+\d+\s+(\d{1,7})\s*$")
_GROUP_ROW = re.compile(
    r"^\s*(?P<group>\d+)\s+\d+\s+\d+\s+[\d\-]+\s+(?P<size>\d{1,7})\s+\d+\s+[A-Z,]+\s+[A-Z,]+\s*$"
)
_COUNTS = re.compile(r"Communicator ranks have different (\w+) operation counts")
_MANY = re.compile(r"^\s*(\d+) ranks have (?:launched up to operation (\d+)|not launched any)")
_ONE = re.compile(r"^\s*Rank (\d{1,7}) has (?:launched up to operation (\d+)|not launched any)")
_LISTED = re.compile(r"^\s*Rank (\d{1,7}) -- ")
_REPORTED = re.compile(r"^\s*Rank (\d{1,7}) reported (.+?)(?: -- |$)")
_MISSING = re.compile(r"Missing communicator data from \d+ ranks?")
_DEAD = re.compile(r"job process(?:es are| is) considered dead")
_PROCESS = re.compile(r"^\s*Process (\d{1,9}) on node (\S+) managing")
_OF_RANK = re.compile(r"Rank (\d{1,7}) .*managed by process (\d{1,9}) on node (\S+)")
FORM = re.compile(r"^\s*[#\d]|considered dead")
HEADS = (
    "Job summary", "INCOMPLETE", "MISMATCH", "considered dead", " operation counts",
    "Missing communicator data",
)  # fmt: skip
_MAX_LINES = 4096
_MOST_SHOWN = 8
"""Ranks that are named one by one."""


class RasReport:
    """Follows one report line by line; a newer one replaces it."""

    def __init__(self) -> None:
        self._gpus = 0
        self._sizes: dict[int, int] = {}
        self._healthy: tuple[LogLine, int] | None = None
        """The last row of a table of communicators, if RAS finds nothing in them."""
        self._clear()

    def _clear(self) -> None:
        self._kind = ""
        self._size = 0
        self._counts: dict[int, list[int]] = {}
        """For the current operation: operations launched -> the ranks listed for that number."""
        self._many: dict[int, int] = {}
        """Operations launched -> how many ranks."""
        self._last = -1
        self._op = ""
        self._at: tuple[LogLine, int] | None = None
        self._until = 0
        self._dead = False

    def follows(self, line: LogLine) -> bool:
        """Whether the line may continue a report."""
        return line.number <= self._until

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Record one line of a report. Returns whether it was one."""
        text = line.text
        row = _GROUP_ROW.match(text)
        if row:
            self._healthy = (line, at_ns) if text.rstrip().endswith("OK") else None
            size = self._sizes[int(row.group("group")[:6])] = int(row.group("size"))
            if size == self._gpus:
                evidence.world_size = evidence.world_size or size
            return True
        gpus = _GPUS.match(text)
        if gpus:
            self._gpus = int(gpus.group(1))
            return True
        head = _HEAD.match(text)
        if head:
            self._settle(evidence)
            self._kind = head.group(4)
            self._size = self._sizes.get(int(head.group(1)[:6]), 0)
            self._at, self._until = (line, at_ns), line.number + _MAX_LINES
            return True
        if _DEAD.search(text):
            self._dead, self._until = True, line.number + 64
            return True
        if line.number > self._until:
            return False
        return self._inside(line, at_ns, evidence)

    def _inside(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        text = line.text
        if self._dead and (found := _PROCESS.match(text)):
            rank = evidence.processes.of_pid(int(found.group(1)), Machine(found.group(2)))
            accused = () if rank is None else (rank,)
            evidence.claim("unreachable", line, at_ns, accused=accused)
            return True
        if not self._kind:
            return False
        found = _COUNTS.search(text)
        if found:
            at, kind, size = self._at, self._kind, self._size
            self._settle(evidence)
            self._at, self._kind, self._size = at, kind, size
            self._until = line.number + _MAX_LINES
            self._op = found.group(1)
            self._at = (line, at_ns)
            return True
        if _MISSING.search(text):
            return True
        where = _OF_RANK.search(text)
        if where and self._is_world():
            notes = evidence.of(int(where.group(1)))
            notes.pid, notes.host = notes.pid or int(where.group(2)), notes.host or where.group(3)
            evidence.processes.is_told(notes.rank, int(where.group(2)), Machine(where.group(3)))
        return self._row(line, at_ns, evidence)

    def _row(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        text = line.text
        found = _REPORTED.match(text)
        if found:
            peer = "remote" in found.group(2) or "network" in found.group(2)
            kind: ClaimKind = "network_error" if peer else "device_error"
            accused = (int(found.group(1)),) if self._is_world() and not peer else ()
            evidence.claim(kind, line, at_ns, accused=accused, certain=False)
            return True
        found = _MANY.match(text)
        if found:
            self._last = int((found.group(2) or "0")[:18])
            self._many[self._last] = int(found.group(1)[:7])
            return True
        found = _ONE.match(text)
        if found:
            self._counts.setdefault(int((found.group(2) or "0")[:18]), []).append(
                int(found.group(1))
            )
            return True
        found = _LISTED.match(text)
        if not found:
            return False
        rank = int(found.group(1))
        if self._kind == "INCOMPLETE":
            accused = (rank,) if self._is_world() else ()
            said = line.saying(f"Missing communicator data from: {text.strip()}")
            evidence.claim("unreachable", said, at_ns, accused=accused, certain=False)
        elif self._last >= 0 and len(self._counts.get(self._last, ())) < _MAX_LINES:
            self._counts.setdefault(self._last, []).append(rank)
        return True

    def _is_world(self) -> bool:
        """Whether the current communicator contains every rank of the job."""
        return bool(self._size) and self._size == self._gpus

    def finish(self, evidence: Evidence) -> None:
        """Conclude the last communicator once the log has ended."""
        self._settle(evidence)
        if self._healthy is not None and not evidence.claims:
            line, at_ns = self._healthy
            text = "every process answers NCCL's RAS, and all have launched the same operations"
            evidence.claim("other", line.saying(text), at_ns, certain=False, stands=True)

    def _settle(self, evidence: Evidence) -> None:
        """Accuse ranks that have launched less than most, if they are listed."""
        if self._at is not None and self._op:
            line, at_ns = self._at
            launched = {n: len(ranks) for n, ranks in self._counts.items()} | self._many
            least = min(launched, default=0)
            behind = self._counts.get(least, [])
            total = sum(launched.values())
            clear = len(behind) == launched.get(least) and len(behind) * 2 < total
            counts = "; ".join(f"{n} by {self._who(n, launched[n])}" for n in sorted(launched))
            evidence.claim(
                "missing_ranks",
                line.saying(f"{line.text.strip()}: {counts}"),
                at_ns,
                accused=tuple(behind) if clear and self._is_world() else (),
                op=self._op,
            )
        self._clear()

    def _who(self, launched: int, count: int) -> str:
        """The ranks that have launched so many operations, where the report lists them."""
        listed = self._counts.get(launched, [])
        if len(listed) != count or count > _MOST_SHOWN:
            return f"{count} ranks"
        return f"rank{'s' if count > 1 else ''} {', '.join(map(str, listed))}"
