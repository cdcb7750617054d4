"""Facts about one rank's process: where it runs, what it is doing, how it ended.

Times are integer nanoseconds since the epoch; ``0`` means "unknown" or "not yet".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from hangscope.ring.layout import LEAVING_PHASE
from hangscope.trace.signals import SIGABRT, codes_of


class Frame(NamedTuple):
    """One stack frame; stacks are innermost frame first, as in Flight Recorder dumps."""

    name: str
    filename: str
    line: int


Stack = tuple[Frame, ...]


def tcp_address(meeting: str) -> tuple[str, str] | None:
    """Host and port of a rendezvous such as ``tcp://[::1]:29500``; None if it is not TCP."""
    scheme, _, place = meeting.partition("://")
    host, _, port = place.rpartition(":")
    return (host.strip("[]"), port) if scheme == "tcp" else None


UNRECORDED: Final = "unrecorded"
"""The kind of a claim that a rank is alive but could not be recorded; its text says why."""


def machine_name(host: str, machine: str) -> str:
    """A name that is unique to the machine: the host's, plus a suffix if that is not enough."""
    return f"{host}/{machine}" if machine else host


@dataclass(frozen=True, slots=True)
class Phase:
    """What a rank is doing outside collectives: ``init_process_group``, ``checkpoint``, ..."""

    name: str
    since_ns: int = 0
    detail: str = ""


STALE_HEARTBEATS = 3
"""After this many missed intervals the process cannot run, or something keeps it from running."""
CAUSED_BY = "\ncaused by "
"""Separates an exception's message from the exception it was raised from (``from error``)."""


@dataclass(frozen=True, slots=True)
class ExceptionFacts:
    """An exception: ``type_name`` as ``module.Class``, frames innermost first."""

    type_name: str
    message: str = ""
    stack: Stack = ()
    at_ns: int = 0
    thread_name: str = "MainThread"
    is_main_thread: bool = True
    native_id: int = 0
    """The thread's native id, as in the records; 0 if the source does not say."""
    may_be_handled: bool = False
    """Known only from a log in which nothing shows that it ended the process."""

    @property
    def first_line(self) -> str:
        """The first line of its message."""
        lines = self.message.strip().splitlines()
        return lines[0] if lines else ""

    @property
    def line(self) -> str:
        """Its type and the first line of its message, as Python prints them."""
        said = self.first_line
        return f"{self.name}: {said}" if said else self.name

    @property
    def name(self) -> str:
        """Its type; of a built-in one without the module, as Python prints it."""
        return self.type_name.removeprefix("builtins.")

    @property
    def is_interrupt(self) -> bool:
        """Whether SIGINT (Ctrl-C) raised it."""
        return self.type_name.endswith("KeyboardInterrupt")


WITHOUT_A_WORD = "gone without a word"
"""Exit text of a process that is gone and has recorded neither a status nor an error."""
ON_ITS_WAY_OUT = "on its way out"
"""Exit text for a signal that ended a process which was already exiting by itself."""


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """How a process ended. ``code`` and ``signal`` are ``None`` if nobody saw them.

    ``kind``: ``"clean"`` (exit status 0, or exited by itself with an unseen status),
    ``"exception"``, ``"code"`` (non-zero exit status), ``"signal"``, ``"oom"`` (killed for memory)
    or ``"unknown"`` (gone, and nobody saw how).
    """

    kind: str
    code: int | None = None
    signal: int | None = None
    at_ns: int = 0
    by_launcher: bool = False
    """The launcher or scheduler told it to stop, so it is a victim."""
    text: str = ""
    not_signalled: frozenset[int] | None = None
    """Ranks on its host that had not been told to stop when it ended; None if nobody looked."""
    signalled: frozenset[int] = frozenset()
    """Ranks that had been told to stop by then, if that was observed."""

    @property
    def aborted(self) -> bool:
        """Whether the process aborted itself, according to its signal or status."""
        return self.signal == SIGABRT or self.code in codes_of(SIGABRT)


LEFT = "left"
"""Source of the stack that a thread left to run a handler which ends the process."""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread's Python stack at one moment."""

    name: str
    is_main: bool
    stack: Stack
    sampled_ns: int = 0
    source: str = "sample"
    """``"sample"`` (taken by the rank's own watcher), ``"signal"`` (faulthandler, no GIL needed),
    ``"record"`` (of its newest operation), ``"left"`` (`LEFT`), ``"py-spy"`` or ``"log"``."""
    native_id: int = 0
    """The thread's native id, as in the records; 0 if the source does not say."""
    daemon: bool | None = None
    """Whether it is a daemon thread; None if the source does not say."""


RUNNABLE = "processor"
"""`KernelWait.kind` of a thread that is runnable but waits for a processor."""
UNREAD_OUTPUT = "unread output"
"""`KernelWait.what` of a child that cannot end: it writes to a full pipe that only the waiting
process could read."""


@dataclass(frozen=True, slots=True)
class KernelWait:
    """What a process's main thread waits for, as the kernel reports it to an observer."""

    kind: str = ""
    """``"lock"`` (of a file), ``"locked file"`` (it sleeps with a file open that another process
    has locked), ``"child"``, ``"pipe"`` (empty), ``"full pipe"``, ``"fifo"`` (being opened),
    ``"socket"``, ``"terminal"`` (nobody types), ``"timer"`` (it sleeps), ``"thread"`` (a lock or
    condition inside the process), ``"semaphore"`` (in memory that processes share),
    ``"processor"`` or ``"exec"`` (it now runs another program); empty if unknown."""
    what: str = ""
    """The file or terminal, the peer's address, or the CPU quota, if known; `UNREAD_OUTPUT` of a
    child."""
    processes: tuple[int, ...] = ()
    """Those who hold the lock, are waited for, are at the other end, or share the semaphore."""
    names: tuple[str, ...] = ()
    """The same in words: ``sleep 9999 (pid 4711)``."""
    alone: bool = False
    """Whether no other process is at the other end: of a pipe nobody, of a socket it itself; or no
    other one shares the semaphore."""
    locked: tuple[str, ...] = ()
    """Files on which the process itself holds a lock."""
    helpers: tuple[str, ...] = ()
    """Child processes that cannot respond: ``python (pid 7, stopped)``."""
    since_ns: int = 0
    """When this wait was first seen."""
    seen_ns: int = 0
    """When it was last seen."""

    def is_same(self, other: KernelWait | None) -> bool:
        """Whether ``other`` is the same wait, seen at another time."""
        return other is not None and replace(other, since_ns=0, seen_ns=0) == replace(
            self, since_ns=0, seen_ns=0
        )


@dataclass(frozen=True, slots=True)
class ProxyWait:
    """What a proxy thread of NCCL waits for in an unfinished operation."""

    op: str
    peer: int
    """The rank with which it exchanges data."""
    is_send: bool
    own: bool
    """Whether it waits for its own device, and not for the peer."""


_IDENTITY = (
    "host",
    "machine",
    "pid",
    "local_rank",
    "node_rank",
    "world_size",
    "declared",
    "rendezvous",
    "parent_pid",
    "is_placed_by_order",
    "attempt",
    "run_id",
)


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What any source says about one rank's process. ``None`` means unknown."""

    rank: int
    host: str | None = None
    machine: str = ""
    """Identifies machine and pid namespace, because host names may repeat; empty if unknown."""
    pid: int | None = None
    called: str = ""
    """What a source calls a process of unknown rank (``process 2``)."""
    local_rank: int | None = None
    node_rank: int | None = None
    world_size: int | None = None
    declared: bool | None = None
    """Whether rank and world size were declared by the job itself, rather than read from the
    launcher's variables when torch was imported."""
    rendezvous: str | None = None
    """The rendezvous passed to ``init_process_group``: ``tcp://host:port``, ``file:///path``, or
    the name of a store that no other process can reach."""
    parent_pid: int | None = None
    is_placed_by_order: bool = False
    """Whether its rank only follows from the order in which its parent started its processes."""
    attempt: int | None = None
    run_id: str | None = None
    alive: bool | None = None
    process_state: str | None = None
    """``running``, ``sleeping``, ``disk-sleep``, ``stopped``, ``zombie``, ``gone``."""
    held_by: str | None = None
    """What keeps a stopped process from running, if not a signal: ``gdb (pid 4711)``."""
    wait: KernelWait | None = None
    """What its main thread waits for, if that was seen from outside."""
    heartbeat_ns: int = 0
    heartbeat_interval_s: float | None = None
    gil_blocked: bool | None = None
    """The heartbeat thread has not run for several intervals although the process is alive and not
    stopped: something holds the GIL."""
    cpu_busy: float | None = None
    """CPU seconds used per second between two looks; None after a single look."""
    stack_moved: bool | None = None
    """The main thread's stack differed between two looks."""
    wakeups_hz: float | None = None
    """How often per second the main thread was scheduled between two looks."""
    helpers_busy: float | None = None
    """CPU seconds that its child processes used per second between two looks, both while its main
    thread was asleep."""
    phases: tuple[Phase, ...] = ()
    """Open phases, outermost first; the last one is the current phase."""
    initialized: bool | None = None
    """Whether ``init_process_group`` has returned."""
    finalized: bool | None = None
    """Whether ``destroy_process_group`` of the default group has been entered."""
    freed_ns: int = 0
    """When Ctrl-C ended a wait at exit, after the program was over; 0 if none did. Python then
    exits with the status it would have had anyway."""
    exit: ExitFacts | None = None
    exception: ExceptionFacts | None = None
    """The uncaught exception."""
    printed: ExceptionFacts | None = None
    """An exception that stands in its log and did not end it."""
    handled: ExceptionFacts | None = None
    """The exception being handled when the rank issued its newest operation with `Flag.HANDLING`;
    its time is that of the first such operation."""
    threads: tuple[ThreadStack, ...] = ()
    observed_ns: int = 0
    """When this rank was last observed, or its dump written."""
    started_ns: int = 0
    """When it began to record; 0 if the source does not say."""
    dropped: int = 0
    """Records lost: half written, or refused because a table was full. Wrap-around is not loss."""
    oldest_record_id: int = 0
    """Id of the oldest record left; above 1 the ring has wrapped."""
    only_active: bool = False
    """The source lists only unfinished operations: absence of a record proves nothing."""
    newest_lost: bool = False
    """The source is truncated: only counters of its operations are known."""
    clock_offset_ns: int = 0
    """Add to this rank's times to get the reference clock."""
    device: str = ""
    """The PCI address of the device on which it computes (``0000:1b:00``); empty if unknown."""
    proxies: tuple[ProxyWait, ...] = ()
    """What NCCL's proxy threads wait for in its oldest unfinished operation."""
    unobservable: tuple[str, ...] = ()
    """Activities of this rank that are not recorded (``"cuda graph replay"``, ...)."""

    @property
    def process(self) -> tuple[str, int]:
        """Machine and process id, which together are unique."""
        return machine_name(self.host or "", self.machine), self.pid or 0

    def beats_at(self, now_ns: int) -> bool:
        """Whether its process still wrote heartbeats at that time, of one that nobody can see."""
        most_ns = STALE_HEARTBEATS * (self.heartbeat_interval_s or 1.0) * 1e9
        return self.exit is None and abs(now_ns - self.heartbeat_ns) <= most_ns

    @property
    def is_only_named(self) -> bool:
        """Whether all that is known of it is which process it is."""
        identity = {name: getattr(self, name) for name in _IDENTITY}
        return self == RankFacts(self.rank, **identity)

    @property
    def leaving(self) -> Phase | None:
        """The phase that began when the rank's program was over; None while it runs."""
        return next((phase for phase in self.phases if phase.name == LEAVING_PHASE), None)

    @property
    def is_only_leaving(self) -> bool:
        """Whether the program is over and no phase has begun since."""
        return bool(self.phases) and self.phases[-1].name == LEAVING_PHASE

    @property
    def was_interrupted(self) -> bool:
        """Whether SIGINT (Ctrl-C) ended the program; Python raises it in the main thread."""
        error = self.exception
        return error is not None and error.is_main_thread and error.is_interrupt

    @property
    def aborted_silently(self) -> bool:
        """Whether it aborted itself and nothing says why."""
        return self.exit is not None and self.exit.aborted and self.exception is None

    @property
    def failed_undated(self) -> bool:
        """Whether it raised an exception at a time that no source states."""
        dated = self.exit is not None and self.exit.at_ns
        return self.exception is not None and not self.exception.at_ns and not dated

    @property
    def main_stack(self) -> Stack:
        """The newest stack of the main thread, or an empty one."""
        newest = self._newest_of_main
        return newest.stack if newest is not None else ()

    @property
    def is_seen_leaving(self) -> bool:
        """Whether the main thread's newest stack was taken after the program was over."""
        newest = self._newest_of_main
        since_ns = self.phases[-1].since_ns if self.is_only_leaving else 0
        return newest is not None and 0 < since_ns <= newest.sampled_ns

    @property
    def _newest_of_main(self) -> ThreadStack | None:
        mains = (t for t in self.threads if t.is_main and t.stack)
        return max(mains, key=lambda t: t.sampled_ns, default=None)
