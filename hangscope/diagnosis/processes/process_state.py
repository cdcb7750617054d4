"""What each rank's process shows: how it ended or what it is doing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from hangscope.diagnosis.processes.active_thread import (
    awaited_threads,
    lacks_threads,
    working_stack,
)
from hangscope.diagnosis.processes.failures import (
    NO_FAILURE,
    Failure,
    failure_of,
    speaks_of_others,
)
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import in_python
from hangscope.trace.facts import RUNNABLE
from hangscope.trace.model import (
    CAUSED_BY,
    ON_ITS_WAY_OUT,
    ExceptionFacts,
    KernelWait,
    RankFacts,
    Stack,
    ThreadStack,
)
from hangscope.trace.signals import SIGHUP, SIGINT, SIGTERM, codes_of, name_of

LOADER = re.compile(
    r"(?:^|[^a-z])(?:load|read(?!y)|fetch)|data_?load|batch|dataset|sampler|__next__|tokeni[sz]e|collate",
    re.I,
)
CHECKPOINT = re.compile(r"checkpoint|save|state_dict|serialize", re.I)
STARVED = "starved"
"""State of a process that is runnable but gets no CPU."""
_STARVED = 0.1
"""CPU seconds per second below which a runnable process is starved."""
_STARVED_NS = 10**9
"""It must be seen runnable for so long: sleeping threads wake up now and then."""
_IN_COMMUNICATION = re.compile(
    r"all_reduce|allreduce|all_gather|broadcast|reduce_scatter|all_to_all|barrier|\bwait\b|"
    r"synchronize|\bsend\b|\brecv\b|irecv|isend|backward|gather|scatter|\breduce\b|coalesc"
)
_COMMUNICATION_FILE = re.compile(r"torch[\\/]distributed[\\/]|distributed_c10d\.py$")


_IDLE = 0.08
"""CPU seconds per second that an idle process may use; on a crowded machine a computing one may get
little more."""

_WAKES_HZ = 1.0
"""Library waits poll every few seconds (a data loader checks its workers); a process that reads or
writes piecemeal wakes up more often."""


class End(str, Enum):
    """How a rank's process ended."""

    ALIVE = "alive"
    UNKNOWN = "unknown"
    CLEAN = "clean"
    CRASHED = "crashed"
    TORN_DOWN = "torn down"


_GONE = {End.CLEAN: "exited", End.TORN_DOWN: "exited", End.CRASHED: "crashed"}


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of one rank's process. ``frozen``: its own recorder could no longer run."""

    rank: int
    end: End
    state: str
    end_ns: int = 0
    end_text: str = ""
    frozen: bool = False
    secondary: bool = False
    """Its failure is about another rank's failure."""
    stack: Stack = ()
    phase: str | None = None
    held_by: str = ""
    """What keeps a stopped process from running, if not a signal."""
    in_kernel: bool = False
    """Whether its main thread was in an uninterruptible system call (state D)."""
    wait: KernelWait | None = None
    """What its main thread was blocked on, if ``stack`` is that thread's."""
    waits_for: tuple[int, ...] = ()
    """The ranks among the processes named by ``wait``."""
    awaited: tuple[ThreadStack, ...] = ()
    """Its other threads in the program's own code, if ``stack`` waits for one of its threads."""
    lacks_threads: bool = False
    """Whether ``stack`` waits for one of its threads, and no other one ran Python."""
    wakes: bool = False
    """Whether its main thread keeps waking up, and so is not in one endless call; of a process that
    was ended meanwhile, whether it did."""
    seen_state: str = ""
    """Its state when it was last seen alive; ``state`` may tell how it ended."""
    beat_ns: int = 0
    """When its own recorder last ran; 0 if unknown."""
    failure: Failure = NO_FAILURE

    @property
    def is_observed(self) -> bool:
        """Whether anything is known about what the process does or how it ended."""
        seen = self.state != "unknown" or bool(self.stack) or self.phase is not None
        return seen or self.end is not End.UNKNOWN

    @property
    def gone(self) -> bool:
        """Whether the process has ended or is ending because of a failure."""
        return self.end in (End.CLEAN, End.CRASHED, End.TORN_DOWN)

    @property
    def failed(self) -> bool:
        """Whether it failed for a reason of its own."""
        return self.end is End.CRASHED and not self.secondary

    @property
    def ended_by_itself(self) -> bool:
        """Whether nothing that happened to another rank ended it."""
        return self.end is End.CLEAN or self.failed

    @property
    def cannot_run(self) -> bool:
        """Whether it was stopped, or kept from running Python, when last seen."""
        return self.state in ("stopped", "gil-held", STARVED)

    def in_thread(self, stack: Stack) -> ProcessState:
        """The same process with another thread's stack; what the kernel reported is about the main
        one."""
        if stack == self.stack:
            return self
        wait = self.wait
        if wait is not None:
            wait = KernelWait(
                locked=wait.locked,
                helpers=wait.helpers,
                since_ns=wait.since_ns,
                seen_ns=wait.seen_ns,
            )
        return replace(
            self, stack=stack, wait=wait, waits_for=(), awaited=(), lacks_threads=False,
            in_kernel=False, wakes=False,
        )  # fmt: skip

    @property
    def aborted(self) -> bool:
        """Whether it ended by SIGABRT: its own, a watchdog's or Gloo's."""
        return self.failure.aborted


def process_of(
    facts: RankFacts, thread: int | None, neighbours: Mapping[int, int] | None = None
) -> ProcessState:
    """The state of one rank's process.

    Parameters
    ----------
    facts:
        What is known about the rank.
    thread:
        The thread that issued the rank's newest operation.
    neighbours:
        The ranks of processes on the same host.
    """
    end = _end_of(facts)
    gone = end not in (End.ALIVE, End.UNKNOWN)
    state, frozen = _alive_state(facts)
    went_on = _went_on(facts)
    seen_state = "" if went_on else state
    if gone:  # how a monitor last saw it, unless it went on
        state = state if frozen and not went_on else _GONE[end]
    words = _last_words(facts) if gone else ""
    stack = _stack_of(facts, end, thread)
    over = end is End.TORN_DOWN and stack and facts.is_only_leaving  # it was where its stack shows
    process = ProcessState(
        facts.rank,
        end,
        state,
        _ended_ns(facts, end) if gone else 0,
        words,
        frozen or gone,
        end is End.TORN_DOWN
        or (end is End.CRASHED and speaks_of_others(facts.exception, facts.exit)),
        stack,
        None if over or not facts.phases else facts.phases[-1].name,
        (facts.held_by or "") if state == "stopped" else "",
        in_kernel=not gone and facts.process_state == "disk-sleep",
        awaited=() if went_on else awaited_threads(facts, stack),
        lacks_threads=not went_on and lacks_threads(facts, stack),
        wakes=not went_on and (facts.wakeups_hz or 0.0) > _WAKES_HZ,
        seen_state=seen_state,
        beat_ns=facts.heartbeat_ns,
        failure=failure_of(words),
    )
    wait = facts.wait
    if wait is None or process.stack is not facts.main_stack or went_on:
        return process
    if wait.kind == RUNNABLE and not _starves(facts, wait):
        wait = replace(wait, kind="")
    if wait.kind == RUNNABLE and process.state == "gil-held":
        # The heartbeat then stops as well, whoever has the GIL.
        process = replace(process, state=STARVED)
    ranks = {(neighbours or {}).get(pid) for pid in wait.processes} - {None, facts.rank}
    return replace(process, wait=wait, waits_for=tuple(sorted(r for r in ranks if r is not None)))


def _starves(facts: RankFacts, wait: KernelWait) -> bool:
    """Whether a runnable process was seen to get hardly any CPU for a while."""
    hardly = facts.cpu_busy is not None and facts.cpu_busy < _STARVED
    return hardly and wait.seen_ns - wait.since_ns > _STARVED_NS


def _end_of(facts: RankFacts) -> End:
    """How the process ended, taken by itself."""
    exit_, own_failure = facts.exit, _own_failure(facts)
    if exit_ is not None and exit_.kind == "clean" and own_failure is None:
        return End.CLEAN
    gone = exit_ is not None or facts.alive is False or facts.process_state in ("zombie", "gone")
    if own_failure is None and not gone:
        return End.ALIVE if facts.alive else End.UNKNOWN
    return End.TORN_DOWN if _torn_down(facts) else End.CRASHED


def _ended_ns(facts: RankFacts, end: End) -> int:
    """When it ended; the exception precedes the exit it leads to."""
    own_failure, exit_ = _own_failure(facts), facts.exit
    raised_ns = own_failure.at_ns if own_failure is not None else 0
    ended_ns = raised_ns or (exit_.at_ns if exit_ is not None else 0)
    return ended_ns if end is End.CLEAN else ended_ns or facts.heartbeat_ns


def _stack_of(facts: RankFacts, end: End, thread: int | None) -> Stack:
    """The stack that shows where the process is or was."""
    if end is End.CLEAN:
        return ()
    stack = working_stack(facts, thread)
    left = facts.is_only_leaving and facts.exception is None and not facts.is_seen_leaving
    if end is End.CRASHED and left:
        stack = ()  # it was sampled before the process left
    gone = end in (End.CRASHED, End.TORN_DOWN)
    return stack or (facts.exception.stack if gone and facts.exception is not None else ())


def _own_failure(facts: RankFacts) -> ExceptionFacts | None:
    """The exception that the main thread raised."""
    exception = facts.exception
    return exception if exception is not None and exception.is_main_thread else None


def _torn_down(facts: RankFacts) -> bool:
    """Whether others ended the process: its launcher, or whoever interrupted it."""
    exit_, exception = facts.exit, facts.exception
    if exception is not None and exception.is_interrupt:
        return True
    if exit_ is None or _own_failure(facts) is not None:
        return False
    signalled = exit_.signal in (SIGTERM, SIGINT, SIGHUP) or exit_.code in codes_of(SIGTERM)
    return exit_.by_launcher or signalled


def _failure(facts: RankFacts) -> str:
    """The exception that ended the process, in one line; empty if it ended otherwise."""
    exception = facts.exception
    by_thread = facts.exit is not None and facts.exit.kind in ("exception", "code")
    if exception is None or not (exception.is_main_thread or by_thread):
        return ""
    said = exception.first_line
    text = f"{exception.name}: {shortened(said)}" if said else exception.name
    caused = exception.message.rpartition(CAUSED_BY)[2].strip().splitlines()
    if CAUSED_BY in exception.message and caused:
        kind, _, words = caused[0].partition(": ")
        repeats = bool(words) and words in said  # raise RuntimeError(str(error)) from error
        text += f" (caused by {kind if repeats else shortened(caused[0])})"
    return text


def _last_words(facts: RankFacts) -> str:
    """How the process ended, in one line."""
    exit_ = facts.exit
    if exit_ is not None and exit_.kind == "clean" and _own_failure(facts) is None:
        return "exit status 0" if exit_.code == 0 else "exited on its own, with a status nobody saw"
    if words := _failure(facts):
        return words
    if exit_ is None or exit_.kind == "unknown":
        return (exit_.text if exit_ else "") or "its process is gone and left no exception"
    if exit_.kind == "oom":
        return "killed for memory (OOM)"
    code = exit_.code or 0
    signal = -code if exit_.signal is None and code < 0 else exit_.signal
    if signal is not None:
        when = f" {ON_ITS_WAY_OUT}" if exit_.text == ON_ITS_WAY_OUT else ""
        return f"killed by {name_of(signal)}{when}"
    return f"exit status {exit_.code}" if exit_.code is not None else exit_.text or exit_.kind


def is_late_abort(process: ProcessState) -> bool:
    """Whether a signal killed the process after its program had already ended."""
    return process.end is End.CRASHED and process.failure.late


def _went_on(facts: RankFacts) -> bool:
    """Whether a process ended by itself, so that whatever it had waited for before was over."""
    left = facts.exit is not None and facts.exit.kind not in ("signal", "oom", "unknown")
    return left or _own_failure(facts) is not None


def _alive_state(facts: RankFacts) -> tuple[str, bool]:
    if facts.process_state == "stopped":
        return "stopped", True
    if facts.gil_blocked:
        return "gil-held", True
    if facts.process_state == "disk-sleep":
        return "sleeping", False
    if facts.cpu_busy is not None and facts.cpu_busy > 0.5:
        return "busy", False
    if facts.process_state == "running":
        return "running", False
    if facts.process_state == "sleeping":
        return "sleeping", False
    return ("running" if facts.alive else "unknown"), False


def is_working(facts: RankFacts, more_than: float = _IDLE) -> bool:
    """Whether two looks saw a process make progress or use CPU.

    ``more_than``: up to this many CPU seconds per second do not count as work.
    """
    return bool(facts.stack_moved) or (facts.cpu_busy is not None and facts.cpu_busy > more_than)


def is_unseen(facts: RankFacts) -> bool:
    """Whether nothing shows how a rank ended."""
    own = facts.exception is not None and facts.exception.is_main_thread
    return not own and (facts.exit is None or facts.exit.kind == "unknown")


def in_communication(stack: Stack) -> bool:
    """Whether the innermost frames are those of a collective or of a wait for one.

    Python's own waits (for a queue, a lock, a socket, a child) are not waits for other ranks.
    """
    return any(
        _COMMUNICATION_FILE.search(frame.filename)
        or (_IN_COMMUNICATION.search(frame.name) and not in_python(frame.filename))
        for frame in stack[:4]
    )
