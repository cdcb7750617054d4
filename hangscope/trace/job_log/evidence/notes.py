"""What a log has shown of processes: operations, counters, exceptions, stacks, and their ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hangscope.trace.job_log.evidence.processes import Process
from hangscope.trace.job_log.lines.line import UNKNOWN_MACHINE, LogLine, Machine
from hangscope.trace.model import Frame, Signature

MAX_SAME_NUMBER = 64
"""Maximum operations of one rank with the same sequence number; only forged logs have more."""
GroupId = tuple[str, str]
"""(global name, description) as in the log's labels."""
UNKNOWN_GROUP: GroupId = ("", "")
DEFAULT_GROUP: GroupId = ("0", "default_pg")


@dataclass(slots=True)
class Operation:
    """An operation that a rank issued according to the log."""

    seq: int
    signature: Signature
    group: GroupId = UNKNOWN_GROUP
    place: int | None = None  # a group rank that the line states beside the process's rank
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
    last_line: int = 0
    uncaught: bool = False
    beheaded: bool = False
    """The log begins, or goes on, in the middle of its traceback."""
    survived: bool = False
    """Its writer trained on after it."""
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

    @property
    def kind(self) -> str:
        """Its type without the module."""
        return self.type_name.rpartition(".")[2]

    @property
    def first_line(self) -> str:
        """The first line of its message."""
        return self.message.strip().partition("\n")[0]


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
    printed: LoggedException | None = None
    """The newest one that it has printed and survived."""
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

    @property
    def overdue(self) -> list[Operation]:
        """The operations for which it has given up waiting."""
        return [operation for operation in self.operations if operation.timed_out]

    def runs_as(self, host: str | None, pid: int | None) -> None:
        """Note its host and process, unless they are known."""
        self.host, self.pid = self.host or host or None, self.pid or pid

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

    def died(self, at_ns: int, told: str) -> None:
        """Note that somebody found its process dead; ``told``: who says so."""
        self.found_dead, self.exit_ns = True, self.exit_ns or at_ns
        self.exit_text = self.exit_text or told

    def tells(self) -> bool:
        """Whether more is known about it than that it existed."""
        told = (self.operations, self.counters, self.exceptions, self.seen, self.exit_text)
        return any(told) or self.has_ended or self.found_dead or self.partly_recorded

    def add(self, operation: Operation, line: LogLine) -> None:
        """Add an operation from this line."""
        operation.line, operation.text = line.number, line.excerpt
        self.operations.append(operation)

    def issued(self, operation: Operation, line: LogLine) -> None:
        """Add an operation from this line, which several may tell."""
        same_number = self.numbered(operation.seq)
        for known in same_number:
            if (known.signature.op, known.group) == (operation.signature.op, operation.group):
                known.state = max(known.state, operation.state)
                return
        if len(same_number) < MAX_SAME_NUMBER:
            self.add(operation, line)

    def numbered(self, seq: int) -> list[Operation]:
        """Its operations with this sequence number, in order, while the log is being read."""
        for operation in self.operations[self._indexed :]:
            self._of_number.setdefault(operation.seq, []).append(operation)
        self._indexed = len(self.operations)
        return self._of_number.get(seq, [])


class LauncherFailure(NamedTuple):
    """A failed process, as reported by its node's launcher."""

    local_rank: int
    pid: int | None
    exit_code: int  # negative for the signal that ended it
    at_ns: int
    machine: Machine = UNKNOWN_MACHINE  # the launcher's, and hence the process's
    line: int = 0  # where the log says so


class TaskEnd(NamedTuple):
    """The end of a task, as reported by a scheduler. A task is a rank, or a node with several."""

    task: int
    host: str
    exit_code: int | None
    signal: int | None
    at_ns: int
    oom: bool = False  # killed for its memory use


@dataclass(slots=True)
class Ends:
    """How processes ended, according to launchers, schedulers and kernels.

    They identify processes by pid, local rank or task; the ranks are found at the end of the log.
    """

    failures: list[LauncherFailure] = field(default_factory=list)
    of_tasks: list[TaskEnd] = field(default_factory=list)
    agents: set[Process] = field(default_factory=set)
    """Torchrun agents that mention their workers; each node has one."""
    agents_ns: int = 0
    """The latest time at which an agent has printed something."""
    agents_go_back: bool = False
    """An agent's time is much earlier than a previous one: the logs of several are concatenated."""
    step_ended: bool = False
    """The scheduler has announced that it ends the job: processes killed later are victims."""
    stopped_tasks: set[int] = field(default_factory=set)
    stopped: set[Process] = field(default_factory=set)
    out_of_memory: set[Process] = field(default_factory=set)
    found_dead: dict[Process, int] = field(default_factory=dict)
    """Processes that are only known to have died, and when."""
    unattributed: int = 0
    """Number of ended processes whose rank is unknown."""


@dataclass(slots=True)
class Raised:
    """Exceptions that are not (yet) a rank's."""

    pending: list[UnattributedException] = field(default_factory=list)
    """Of writers whose rank is not yet known."""
    anonymous: list[LoggedException] = field(default_factory=list)
    """Without any hint of their writer."""
    unranked: list[LoggedException] = field(default_factory=list)
    """Of processes whose rank is unknown."""
    survived: list[UnattributedException] = field(default_factory=list)
    """Of processes that seem to have gone on."""
