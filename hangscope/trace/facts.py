"""What is known of one rank's process: where it stands, what it is doing, how it ended.

Times are integer nanoseconds since the epoch; ``0`` means "unknown" or "not yet".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from hangscope.ring.layout import LEAVING_PHASE


class Frame(NamedTuple):
    """One stack frame; stacks are innermost frame first, as in Flight Recorder dumps."""

    name: str
    filename: str
    line: int


Stack = tuple[Frame, ...]


def tcp_address(meeting: str) -> tuple[str, str] | None:
    """Host and port of a meeting point such as ``tcp://[::1]:29500``; None where it is none."""
    scheme, _, place = meeting.partition("://")
    host, _, port = place.rpartition(":")
    return (host.strip("[]"), port) if scheme == "tcp" else None


UNRECORDED = "unrecorded"
"""The kind of a claim that a rank lives, and HangScope could not record it; its text says why."""


def machine_name(host: str, machine: str) -> str:
    """A name that no two machines share: the host's, and behind a slash what tells it apart."""
    return f"{host}/{machine}" if machine else host


@dataclass(frozen=True, slots=True)
class Phase:
    """What a rank is doing outside collectives: ``init_process_group``, ``checkpoint``, ..."""

    name: str
    since_ns: int = 0
    detail: str = ""


STALE_BEATS = 3
"""Whose heart has not beaten for so many intervals cannot run, or something keeps it from that."""
CAUSED_BY = "\ncaused by "
"""Behind it an exception's message tells what the exception was raised from (``from error``)."""


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
    """The kernel's number of that thread, as in the records; 0 where the source does not say."""

    @property
    def is_interrupt(self) -> bool:
        """Whether it is what SIGINT (Ctrl-C) raises."""
        return self.type_name.endswith("KeyboardInterrupt")


WITHOUT_A_WORD = "gone without a word"
"""What is said of a process that is gone, and by itself has noted neither a status nor an error."""
ON_ITS_WAY_OUT = "on its way out"
"""What is said of a signal that ended a process which had begun to leave by itself."""


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """How a process ended. ``code`` and ``signal`` are ``None`` where nobody saw them.

    ``kind``: ``"clean"`` (exit status 0, or left by itself with a status nobody saw),
    ``"exception"``, ``"code"`` (non-zero exit status), ``"signal"``, ``"oom"`` (killed for memory)
    or ``"unknown"`` (gone, and nobody saw how).
    """

    kind: str
    code: int | None = None
    signal: int | None = None
    at_ns: int = 0
    by_launcher: bool = False
    """The launcher or the scheduler told it to stop: a victim's end."""
    text: str = ""
    untold: frozenset[int] | None = None
    """Ranks of its host that nobody had told to stop when it had ended, where somebody looked."""
    told: frozenset[int] = frozenset()
    """Those that had been told to by then, as far as that was seen."""


LEFT = "left"
"""Source of the stack that a thread was called away from, to a handler of its end."""


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
    """The kernel's number of the thread, as in the records; 0 where the source does not say."""
    daemon: bool | None = None
    """Whether the interpreter exits without waiting for it; None where the source does not say."""


RUNS = "processor"
"""Kind of the wait of a thread that could run."""


@dataclass(frozen=True, slots=True)
class KernelWait:
    """What a process's main thread does not go on for, as the kernel tells whoever looks."""

    kind: str = ""
    """``"lock"`` (of a file), ``"locked file"`` (it sleeps, and has a file open that another one
    has locked), ``"child"``, ``"pipe"`` (nothing comes), ``"full pipe"``, ``"fifo"`` (being
    opened), ``"socket"``, ``"thread"`` (a lock or condition inside of the process),
    ``"processor"`` or ``"exec"`` (it runs another program by now); empty where nothing tells it."""
    what: str = ""
    """The file, the peer's address, or how much of a processor it may use, where that is seen."""
    processes: tuple[int, ...] = ()
    """Who holds the lock, who is waited for, or who is at the other end."""
    names: tuple[str, ...] = ()
    """Those in words, as ``sleep 9999 (pid 4711)``."""
    alone: bool = False
    """Whether nobody else is at the other end."""
    locked: tuple[str, ...] = ()
    """Files on which the process holds a lock itself."""
    helpers: tuple[str, ...] = ()
    """What it has started and what cannot answer: ``python (pid 7, stopped)``."""
    since_ns: int = 0
    """When it was first seen to wait for this."""
    seen_ns: int = 0
    """When it was last seen to."""

    def is_same(self, other: KernelWait | None) -> bool:
        """Whether ``other`` is this wait, seen at another time."""
        return other is not None and replace(other, since_ns=0, seen_ns=0) == replace(
            self, since_ns=0, seen_ns=0
        )


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What is known of one rank's process, whatever the source. ``None`` means unknown."""

    rank: int
    host: str | None = None
    machine: str = ""
    """Which machine and pid namespace that is: hosts may be named alike. Empty: not known."""
    pid: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    world_size: int | None = None
    declared: bool | None = None
    """Whether rank and world size are what the job itself has said, not what its launcher's
    variables were when torch was imported."""
    rendezvous: str | None = None
    """Where ``init_process_group`` meets the others, as it was called: ``tcp://host:port``,
    ``file:///path``, or the name of a store that reaches no other process."""
    parent_pid: int | None = None
    attempt: int | None = None
    run_id: str | None = None
    alive: bool | None = None
    process_state: str | None = None
    """``running``, ``sleeping``, ``disk-sleep``, ``stopped``, ``zombie``, ``gone``."""
    held_by: str | None = None
    """What keeps a stopped process from running, where it is no signal: ``gdb (pid 4711)``."""
    wait: KernelWait | None = None
    """What its main thread does not go on for, where a look from outside tells it."""
    heartbeat_ns: int = 0
    heartbeat_interval_s: float | None = None
    gil_blocked: bool | None = None
    """The heartbeat thread has not run for several intervals although the process is alive and
    not stopped: something holds the GIL."""
    cpu_busy: float | None = None
    """CPU seconds used per second between two looks; None after a single look."""
    stack_moved: bool | None = None
    """The main thread's stack differed between two looks."""
    wakeups_hz: float | None = None
    """How often a second the main thread was given a processor between two looks."""
    phases: tuple[Phase, ...] = ()
    """Open phases, outermost first; the last is what the rank is in now."""
    initialized: bool | None = None
    """Whether ``init_process_group`` has returned."""
    finalized: bool | None = None
    """Whether ``destroy_process_group`` of the default group has been entered."""
    freed_ns: int = 0
    """When Ctrl-C ended what the process waited for after its program was over; 0 where none did.
    Python goes on to exit then, with the status it would have had."""
    exit: ExitFacts | None = None
    exception: ExceptionFacts | None = None
    """What was not caught."""
    handled: ExceptionFacts | None = None
    """What was being handled when the rank issued its newest operation with `Flag.HANDLING`; its
    time is that of the first of them."""
    threads: tuple[ThreadStack, ...] = ()
    observed_ns: int = 0
    """When this rank was looked at or its dump written."""
    started_ns: int = 0
    """When it began to record; 0 where the source does not say."""
    dropped: int = 0
    """Records lost: half written, or refused because a table was full. Wrap-around is not loss."""
    oldest_record_id: int = 0
    """Id of the oldest record still there; above 1 the ring has wrapped."""
    only_active: bool = False
    """The source lists unfinished operations only: absence of a record proves nothing."""
    newest_lost: bool = False
    """The source ends in the middle: of its operations only counters are known."""
    clock_offset_ns: int = 0
    """Add to this rank's times to get the reference clock."""
    unobservable: tuple[str, ...] = ()
    """What this rank does that no record shows (``"cuda graph replay"``, ...)."""

    @property
    def process(self) -> tuple[str, int]:
        """What tells its process from all others: machine and process id."""
        return machine_name(self.host or "", self.machine), self.pid or 0

    @property
    def leaving(self) -> Phase | None:
        """The phase since which the rank's program is over; None while it runs."""
        return next((phase for phase in self.phases if phase.name == LEAVING_PHASE), None)

    @property
    def is_only_leaving(self) -> bool:
        """Whether the program is over and nothing else has begun since."""
        return bool(self.phases) and self.phases[-1].name == LEAVING_PHASE

    @property
    def was_interrupted(self) -> bool:
        """Whether SIGINT (Ctrl-C) ended the program, as Python raises it in the main thread."""
        error = self.exception
        return error is not None and error.is_main_thread and error.is_interrupt

    @property
    def main_stack(self) -> Stack:
        """The newest stack of the main thread, or an empty one."""
        newest = self._newest_of_main
        return newest.stack if newest is not None else ()

    @property
    def is_seen_leaving(self) -> bool:
        """Whether the main thread's newest stack is from after the program was over."""
        newest = self._newest_of_main
        since_ns = self.phases[-1].since_ns if self.is_only_leaving else 0
        return newest is not None and 0 < since_ns <= newest.sampled_ns

    @property
    def _newest_of_main(self) -> ThreadStack | None:
        mains = (t for t in self.threads if t.is_main and t.stack)
        return max(mains, key=lambda t: t.sampled_ns, default=None)
