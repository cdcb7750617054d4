"""Reports of NCCL's RAS subsystem (``ncclras``, ``ncclras -v``, NCCL 2.24 and later) as text.

RAS counts the operations that every rank of a communicator has launched. A communicator's ranks can
be mapped to those of the job only if it contains all of them.
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.lines.line import LogLine, Machine
from hangscope.trace.model import ClaimDetails, ClaimKind

_BEGINS = re.compile(r"^Job summary\s*$")
_HEAD = re.compile(r"^\s*#(\d+)-(\d+) \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)")
_GPUS = re.compile(r"^\s+\d+\s+\d+\s+\d+\s+\d+\s+(\d{1,7})\s*$")
_GROUP_ROW = re.compile(
    r"^\s*(?P<group>\d+)\s+\d+\s+\d+\s+[\d\-]+\s+(?P<size>\d{1,7})\s+\d+\s+[A-Z,]+\s+[A-Z,]+\s*$"
)
_COUNTS = re.compile(r"Communicator ranks have different (\w+) operation counts")
_LAUNCHED = re.compile(
    r"^\s*(?:(?P<many>\d{1,7}) ranks have|Rank (?P<rank>\d{1,7}) has) "
    r"(?:launched up to operation (?P<n>\d{1,18})|not launched any)"
)
_LISTED = re.compile(r"^\s*Rank (\d{1,7}) -- ")
_REPORTED = re.compile(r"^\s*Rank (\d{1,7}) reported (.+?)(?: -- |$)")
_DEAD = re.compile(r"job process(?:es are| is) considered dead")
_PROCESS = re.compile(r"^\s*Process (\d{1,9}) on node (\S+) managing (GPUs? [\d, ]{1,80})")
_OF_RANK = re.compile(
    r"Rank (\d{1,7}) .*(GPU \d{1,4}) managed by process (\d{1,9}) on node ([^\s,]+)"
)
FORM = re.compile(r"^\s*[#\d]|considered dead|^Job summary")
HEADS = ("Job summary", "INCOMPLETE", "MISMATCH", "considered dead", " operation counts")
_MAX_LINES = 4096
_MOST_SHOWN = 8
"""Ranks that are named one by one."""


class RasReport:
    """Follows reports line by line; every ``Job summary`` begins another snapshot."""

    def __init__(self) -> None:
        self._snapshot = self._gpus = 0
        self._sizes: dict[int, int] = {}
        self._healthy: LogLine | None = None
        """The last row of a table of communicators, if RAS finds nothing in them."""
        self._until, self._dead = 0, False
        self._begin("", "", 0)

    def _begin(self, kind: str, name: str, size: int) -> None:
        """Begin the report on one communicator."""
        self._kind, self._name, self._size = kind, name, size
        self._where: dict[int, str] = {}
        """By rank: its process and device."""
        self._count("", None)

    def _count(self, op: str, at: LogLine | None) -> None:
        """Begin the counts of one operation."""
        self._op, self._at = op, at
        self._listed: dict[int, list[int]] = {}
        """Operations launched -> the ranks listed for that number."""
        self._many: dict[int, int] = {}
        """Operations launched -> how many ranks."""
        self._last = -1

    def follows(self, line: LogLine) -> bool:
        """Whether the line may continue a report."""
        return line.number <= self._until

    def read(self, line: LogLine, attempt: Attempt) -> bool:
        """Record one line of a report. Returns whether it was one."""
        text = line.text
        if _BEGINS.match(text):
            self._settle(attempt)
            self._snapshot, self._healthy, self._dead = self._snapshot + 1, None, False
            self._begin("", "", 0)
        elif row := _GROUP_ROW.match(text):
            self._healthy = line if text.rstrip().endswith("OK") else None
            size = self._sizes[int(row["group"][:6])] = int(row["size"])
            if size == self._gpus:
                attempt.has_ranks(size)
        elif gpus := _GPUS.match(text):
            self._gpus = int(gpus[1])
        elif head := _HEAD.match(text):
            self._settle(attempt)
            self._begin(head[4], head[3], self._sizes.get(int(head[1][:6]), 0))
            self._until = line.number + _MAX_LINES
        elif _DEAD.search(text):
            self._dead, self._until = True, line.number + 64
        else:
            return line.number <= self._until and self._inside(line, attempt)
        return True

    def _inside(self, line: LogLine, attempt: Attempt) -> bool:
        """A line about one process or one communicator."""
        text = line.text
        if self._dead and (process := _PROCESS.match(text)):
            pid, host = int(process[1]), process[2]
            rank = attempt.processes.of_pid(pid, Machine(host))
            said = f"RAS: process {pid} on {host}, {process[3].strip()}, is considered dead"
            attempt.claim("unreachable", line.saying(said), accused=(rank,))
            return True
        if not self._kind:
            return False
        if counts := _COUNTS.search(text):
            self._settle(attempt)
            self._count(counts[1], line)
            self._until = line.number + _MAX_LINES
            return True
        is_world = bool(self._size) and self._size == self._gpus  # it has every rank of the job
        if where := _OF_RANK.search(text):
            rank, pid, host = int(where[1]), int(where[3]), where[4]
            self._where[rank] = f" (process {pid} on {host}, {where[2]})"
            if is_world:
                attempt.of(rank).runs_as(host, pid)
                attempt.processes.is_told(rank, pid, Machine(host))
        return self._row(line, attempt, is_world=is_world)

    def _row(self, line: LogLine, attempt: Attempt, *, is_world: bool) -> bool:
        """A line about one rank, or about several that have launched the same."""
        text = line.text
        if found := _REPORTED.match(text):
            peer = "remote" in found[2] or "network" in found[2]
            kind: ClaimKind = "network_error" if peer else "device_error"
            accused = (int(found[1]),) if is_world and not peer else ()
            attempt.claim(kind, line, accused=accused, certain=False)
        elif found := _LAUNCHED.match(text):
            n = int(found["n"] or 0)
            if found["many"]:
                self._last, self._many[n] = n, int(found["many"])
            else:
                self._listed.setdefault(n, []).append(int(found["rank"]))
        elif found := _LISTED.match(text):
            rank = int(found[1])
            if self._kind == "INCOMPLETE":
                where_ = f"rank {rank} of communicator {self._name}{self._where.get(rank, '')}"
                told = line.saying(f"RAS: {where_} does not answer")
                accused = (rank,) if is_world else ()
                attempt.claim("unreachable", told, accused=accused, certain=False)
            elif self._last >= 0 and len(self._listed.get(self._last, ())) < _MAX_LINES:
                self._listed.setdefault(self._last, []).append(rank)
        else:
            return "Missing communicator data from" in text
        return True

    def finish(self, attempt: Attempt) -> None:
        """Conclude the last communicator once the log has ended."""
        self._settle(attempt)
        if self._healthy is not None and not attempt.stated:
            text = "every process answers NCCL's RAS, and all have launched the same operations"
            details = ClaimDetails(stands=True)
            attempt.claim("other", self._healthy.saying(text), certain=False, details=details)

    def _settle(self, attempt: Attempt) -> None:
        """Accuse ranks that have launched less than most, if they are listed."""
        if self._at is None:
            return
        line = self._at
        launched = {n: len(ranks) for n, ranks in self._listed.items()} | self._many
        least = min(launched, default=0)
        behind = self._listed.get(least, [])
        clear = len(behind) == launched.get(least) and len(behind) * 2 < sum(launched.values())
        clear &= bool(self._size) and self._size == self._gpus
        counts = "; ".join(f"{n} by {self._who(n, launched[n])}" for n in sorted(launched))
        text = f"RAS: members of communicator {self._name} have launched different numbers of "
        attempt.claim(
            "missing_ranks", line.saying(f"{text}{self._op}: {counts}"),
            accused=tuple(behind) if clear else (), op=self._op,
            words=f"{self._name} {self._snapshot}",
            details=ClaimDetails(snapshot=(self._name, self._op, least)),
        )  # fmt: skip
        self._count("", None)

    def _who(self, launched: int, count: int) -> str:
        """The ranks that have launched so many operations, where the report lists them."""
        listed = self._listed.get(launched, [])
        if len(listed) != count or count > _MOST_SHOWN:
            return f"{count} ranks"
        of = ", ".join(f"{rank}{self._where.get(rank, '')}" for rank in listed)
        return f"rank{'s' if count > 1 else ''} {of}"
