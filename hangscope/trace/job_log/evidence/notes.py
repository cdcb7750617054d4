"""What a log has shown of one rank: operations, counters, exceptions, stacks, and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hangscope.trace.job_log.lines.line import UNKNOWN_MACHINE, LogLine, Machine
from hangscope.trace.model import Frame, Signature

UNKNOWN_GROUP = ("", "")
DEFAULT_GROUP = ("0", "default_pg")

GroupId = tuple[str, str]
"""(global name, description) as in the log's labels; `UNKNOWN_GROUP` without a label."""


@dataclass(slots=True)
class Operation:
    """An operation that a rank issued according to the log."""

    seq: int
    signature: Signature
    group: GroupId = UNKNOWN_GROUP
    place: int | None = None
    """A group rank that the line states in addition to the process's rank."""
    timed_out: bool = False
    state: int = 0
    timeout_ms: int = 0
    ran_ms: int = 0
    bare: bool = False
    """Only the message states the rank; before torch 2.2 that is the rank inside some group."""
    at_ns: int = 0
    line: int = 0
    text: str = ""
    stack: tuple[Frame, ...] = ()
    """Where it was issued, innermost first, if the watchdog prints that."""


@dataclass(slots=True)
class Counters:
    """A rank's last enqueued, started and completed work in one group; -1 if unknown."""

    enqueued: int = -1
    started: int = -1
    completed: int = -1
    at_ns: int = 0
    line: int = 0
    failed_ns: int = 0
    """When its watchdog found that an operation had failed or timed out; 0 if it has not."""


@dataclass(slots=True)
class LoggedException:
    """An exception as shown in the log."""

    type_name: str = ""
    message: str = ""
    frames: list[Frame] = field(default_factory=list)
    at_ns: int = 0
    line: int = 0
    uncaught: bool = False
    thread_name: str = "MainThread"
    cause: str = ""
    """Type and message of the first exception in its ``raise ... from`` chain."""
    during: LoggedException | None = None
    """The first exception during whose handling (``except``, ``finally``) it was raised."""
    chained: bool = False
    """Another one was raised while it was handled."""
    of_rank: int | None = None
    """The rank that raised it, if the writer only repeats it."""
    in_group: bool = False
    """The line of user code that raised it passes a process group to the call."""
    group_name: str = ""
    """The expression for that group, if it is a name."""


class UnattributedException(NamedTuple):
    """An exception, and what is known about the process that wrote it while its rank is not."""

    trouble: LoggedException
    local_rank: int | None
    pid: int | None
    machine: Machine


@dataclass(slots=True)
class ProcessStacks:
    """The stacks of one process at one moment, and what identifies the process."""

    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    machine: Machine = UNKNOWN_MACHINE
    at_ns: int = 0
    called: str = ""
    """What a heading calls the process, if not by a rank (``process 2``)."""
    current_seen: bool = False
    """faulthandler has named its current thread."""
    spy: bool = False
    """Taken by py-spy, not written by the process itself."""
    threads: list[tuple[str, str, list[Frame]]] = field(default_factory=list)
    """(name, thread id, frames innermost first)."""


@dataclass(slots=True)
class RankNotes:
    """Everything gathered about one rank."""

    rank: int
    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    operations: list[Operation] = field(default_factory=list)
    counters: dict[GroupId, Counters] = field(default_factory=dict)
    places: dict[GroupId, int] = field(default_factory=dict)
    """Group rank by group, from labels."""
    exceptions: list[LoggedException] = field(default_factory=list)
    exit_code: int | None = None
    exit_signal: int | None = None
    exit_text: str = ""
    exit_ns: int = 0
    by_launcher: bool = False
    by_local_rank: bool = False
    """Its end was reported for a local rank or task that was translated to this rank."""
    local_as_rank: bool = False
    """The local rank was taken for the rank, as no other node has written to the log."""
    echo: bool = False
    """Its end is explained by a failed connection or rendezvous."""
    oom_killed: bool = False
    found_dead: bool = False
    """A scheduler reports that its process died, but not how."""
    partly_recorded: bool = False
    """Its watchdog has spoken, but the log does not say what it waits in."""
    seen: ProcessStacks | None = None
    """Its newest stacks."""
    _of_number: dict[int, list[Operation]] = field(default_factory=dict)
    _indexed: int = 0
    """How many operations are in `_of_number`."""

    @property
    def has_ended(self) -> bool:
        """Whether the exit status or signal of its process is known."""
        return self.exit_code is not None or self.exit_signal is not None

    def ended(self, code: int, at_ns: int) -> None:
        """Record an exit status as printed by launchers: a signal is negative, or 128 + number."""
        if code < 0:
            self.exit_signal = -code
        elif 128 < code <= 128 + 64:
            self.exit_signal = code - 128
            self.exit_code = code
        else:
            self.exit_code = code
        self.exit_ns = self.exit_ns or at_ns

    def tells(self) -> bool:
        """Whether more is known about it than that it existed."""
        told = (self.operations, self.counters, self.exceptions, self.seen, self.exit_text)
        return any(told) or self.has_ended or self.found_dead or self.partly_recorded

    def add_once(self, operation: Operation, line: LogLine) -> None:
        """Add an operation from this line, unless one of that group is known already."""
        if all(known.group != operation.group for known in self.operations):
            operation.line, operation.text = line.number, line.excerpt
            self.operations.append(operation)

    def numbered(self, seq: int) -> list[Operation]:
        """Its operations with this sequence number, in order, while the log is being read."""
        for operation in self.operations[self._indexed :]:
            self._of_number.setdefault(operation.seq, []).append(operation)
        self._indexed = len(self.operations)
        return self._of_number.get(seq, [])
