"""What is gathered from one job log before it becomes fragments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hangscope.trace.job_log.lines.line import SOMEWHERE, LogLine, Machine
from hangscope.trace.job_log.lines.rank_numbers import Meaning
from hangscope.trace.job_log.readers.process_ends import Ends
from hangscope.trace.job_log.readers.process_ranks import Processes
from hangscope.trace.model import MAX_RANK, Claim, ClaimDetails, Frame, Signature

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_CLAIMS = 20_000
MAX_MENTIONS = 1_000_000
"""Of ranks in reports of others: a few characters may speak of a hundred thousand ranks, and every
rank of a large job prints the same report."""
MAX_SAME_NUMBER = 64
"""Operations of one rank that share a number; only a made-up log has more."""
UNKNOWN_GROUP = ("", "")
DEFAULT_GROUP = ("0", "default_pg")

GroupId = tuple[str, str]
"""(global name, description) as the log's labels give them; `UNKNOWN_GROUP` without a label."""

Comparison = tuple[int, dict[int, Signature]]
"""The writer's place in a group, and what members ran by place."""


@dataclass(slots=True)
class Operation:
    """One operation of which the log says that a rank issued it."""

    seq: int
    signature: Signature
    group: GroupId = UNKNOWN_GROUP
    place: int | None = None
    """The rank inside some group that the line gives beside the process's own."""
    timed_out: bool = False
    state: int = 0
    timeout_ms: int = 0
    ran_ms: int = 0
    bare: bool = False
    """Only the message told the rank: before torch 2.2 that is the place in some group."""
    at_ns: int = 0
    line: int = 0
    text: str = ""


@dataclass(slots=True)
class Counters:
    """A rank's last enqueued, started and completed work in one group; -1 where unknown."""

    enqueued: int = -1
    started: int = -1
    completed: int = -1
    at_ns: int = 0
    line: int = 0


@dataclass(slots=True)
class Trouble:
    """An exception as the log shows it."""

    type_name: str = ""
    message: str = ""
    frames: list[Frame] = field(default_factory=list)
    at_ns: int = 0
    line: int = 0
    uncaught: bool = False
    thread_name: str = "MainThread"
    cause: str = ""
    """What the first exception said in the chain that this one was raised from (``from``)."""
    during: Trouble | None = None
    """The first exception during whose handling (``except``, ``finally``) this one was raised."""
    of_rank: int | None = None
    """The rank that raised it, where the writer only repeats it."""
    in_group: bool = False
    """The user's line that raised it passes a process group to what it calls."""
    group_name: str = ""
    """The expression for the group in that line, where it is a name of its own."""


class OfUnknownRank(NamedTuple):
    """An exception, and what is known of the process that wrote it while its rank is not."""

    trouble: Trouble
    local_rank: int | None
    pid: int | None
    machine: Machine


class StoreBarrier(NamedTuple):
    """The newest message of a rank that waits for the others at the barrier of a store."""

    line: int
    rank: int
    joined: int
    """How many ranks had come by then, of ``world``."""
    world: int
    said_by: set[int]
    """The ranks that have told of as many."""


@dataclass(slots=True)
class DesyncReport:
    """What the first lines of a desync report say of those that follow."""

    seq: int | None = None
    """The collective of which they tell who has come to it; None before that is said."""
    of_subgroup: bool = False
    """Its numbers are places in a smaller group, and no ranks."""


@dataclass(slots=True)
class Seen:
    """The stacks of one process at one moment, and what tells whose they are."""

    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    machine: Machine = SOMEWHERE
    at_ns: int = 0
    spy: bool = False
    """Taken by py-spy, not written by the process itself."""
    threads: list[tuple[str, str, list[Frame]]] = field(default_factory=list)
    """(name, identity, frames from the innermost on)."""


@dataclass(slots=True)
class RankNotes:
    """All that is gathered about one rank."""

    rank: int
    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    operations: list[Operation] = field(default_factory=list)
    counters: dict[GroupId, Counters] = field(default_factory=dict)
    places: dict[GroupId, int] = field(default_factory=dict)
    """Group rank per group, from the labels."""
    troubles: list[Trouble] = field(default_factory=list)
    exit_code: int | None = None
    exit_signal: int | None = None
    exit_text: str = ""
    exit_ns: int = 0
    by_launcher: bool = False
    by_local_rank: bool = False
    """Its end was told of a local rank or of a task, and that was taken for the rank."""
    local_as_rank: bool = False
    """The local rank itself was, as no other node has written into the log."""
    echo: bool = False
    """Its end is explained by a connection or a meeting that failed."""
    oom_killed: bool = False
    found_dead: bool = False
    """A scheduler says that its process died, and not how."""
    half_told: bool = False
    """Its watchdog has spoken, and what it waits in is not in the log."""
    seen: Seen | None = None
    """Its newest stacks."""
    _of_number: dict[int, list[Operation]] = field(default_factory=dict)
    _indexed: int = 0
    """How many of the operations are among those."""

    @property
    def has_ended(self) -> bool:
        """Whether an exit status or a signal of its process is known."""
        return self.exit_code is not None or self.exit_signal is not None

    def ended(self, code: int, at_ns: int) -> None:
        """Note an exit status as launchers print it: a signal is negative, or 128 more."""
        if code < 0:
            self.exit_signal = -code
        elif 128 < code <= 128 + 64:
            self.exit_signal = code - 128
            self.exit_code = code
        else:
            self.exit_code = code
        self.exit_ns = self.exit_ns or at_ns

    def tells(self) -> bool:
        """Whether anything is known of it but that it was there."""
        told = (self.operations, self.counters, self.troubles, self.seen, self.exit_text)
        return any(told) or self.has_ended or self.found_dead or self.half_told

    def numbered(self, seq: int) -> list[Operation]:
        """The operations of this number, in their order, as long as the log is being read."""
        for operation in self.operations[self._indexed :]:
            self._of_number.setdefault(operation.seq, []).append(operation)
        self._indexed = len(self.operations)
        return self._of_number.get(seq, [])


@dataclass(slots=True)
class Evidence:
    """All that one log has told so far; reset when a new attempt starts.

    Filled in by the readers line by line, and completed in place once all lines are read
    (`resolving`).
    """

    ranks: dict[int, RankNotes] = field(default_factory=dict)
    claims: list[tuple[Claim, GroupId | None]] = field(default_factory=list)
    world_size: int | None = None
    processes: Processes = field(default_factory=Processes)
    ends: Ends = field(default_factory=Ends)
    comparisons: list[tuple[LogLine, int, Comparison]] = field(default_factory=list)
    """Lines in which torch compared two ranks' operations, when they were written (ns), and what
    they tell."""
    desync: DesyncReport = field(default_factory=DesyncReport)
    """The one that is being read."""
    writer: int | None = None
    """The rank that wrote the newest line which says whose it is."""
    shared_places: bool = False
    """Two processes have written the same number for themselves: a place in smaller groups."""
    comm_size: int | None = None
    comm_devices: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By its number in the largest communicators the host and the device of a process."""
    comms_are_groups: bool = False
    """There are several of that size: their numbers are places in groups."""
    troubles: list[OfUnknownRank] = field(default_factory=list)
    """Exceptions of writers whose rank is not known yet."""
    nobodys: list[Trouble] = field(default_factory=list)
    """Exceptions that were printed without any hint of their writer."""
    stacks: list[Seen] = field(default_factory=list)
    native_stacks: bool = False
    """A debugger's frames are in it, which name C functions only."""
    tables: bool = False
    """What torch's debug server made of Flight Recorder dumps is in it."""
    elastic: bool = False
    """torchrun or MPICH's launcher speaks in it: these start several processes each, and a
    scheduler's task is one of them."""
    shared_tasks: bool = False
    """A line with the number of a task bears another rank: a task holds several."""
    instead: Meaning | None = None
    """What its numbers mean, where a line contradicts what they were taken for."""
    cut: bool = False
    """It ends in the middle of a watchdog's line: somebody pasted the beginning of a log."""
    meeting: StoreBarrier | None = None
    thinned: bool = False
    """Of lines of a watchdog's that read alike only one is in it."""
    given_up: bool = False
    """A watchdog has given up in it."""
    stopped_line: int = 0
    """The first line that says that the job was told to stop; 0 where none does."""
    gave_up_ns: int = 0
    """When the last of them did."""
    trapped: bool = False
    """A kernel has ended itself in it, because it had waited too long for a peer."""
    strangers: list[Trouble] = field(default_factory=list)
    """Exceptions of processes whose rank is not told."""
    unattributed_ends: int = 0
    """Processes that ended and of which the log does not say which rank they were."""
    attempt: int = 0
    fell_back: bool = False
    """It is about an earlier attempt, because the newest says nothing."""
    lines: int = 0
    mentions: int = 0
    """How often ranks were spoken of in reports of others."""
    _earlier: dict[str, Any] | None = None
    _said: dict[tuple[object, ...], int] = field(default_factory=dict)

    def of(self, rank: int) -> RankNotes:
        """The notes about a rank, made on first use; those of an impossible one are not kept."""
        if not 0 <= rank <= MAX_RANK:
            return RankNotes(-1)
        notes = self.ranks.get(rank)
        if notes is None:
            notes = self.ranks[rank] = RankNotes(rank)
        return notes

    def claim(
        self,
        kind: str,
        line: LogLine,
        at_ns: int,
        *,
        accused: tuple[int, ...] = (),
        group: GroupId | None = None,
        seq: int | None = None,
        op: str | None = None,
        certain: bool = True,
        reporter: int | None = None,
        words: str = "",
        **details: Unpack[ClaimDetails],
    ) -> None:
        """Note what a line states outright; the text is kept short.

        Lines that state the same of the same ranks are one claim, unless ``words`` tell them apart.
        """
        said_by = reporter if reporter is not None else line.rank
        if details.get("stopped"):
            self.stopped_line = self.stopped_line or line.number
        claim = Claim(
            kind=kind,
            accused=tuple(sorted(r for r in set(accused) if 0 <= r <= MAX_RANK)),
            reporter=said_by,
            seq=seq,
            op=op,
            text=line.excerpt,
            at_ns=at_ns,
            certain=certain,
            details=details,
        )
        same = (kind, claim.accused, said_by, seq, op, words)
        known = self._said.get(same)
        if known is not None:  # said before; the details may complete each other
            first, its_group = self.claims[known]
            told = {k: v for k, v in first.details.items() if v is not None}
            merged = cast("ClaimDetails", {**details, **told})
            self.claims[known] = (replace(first, details=merged), its_group or group)
        elif len(self.claims) < MAX_CLAIMS:
            self._said[same] = len(self.claims)
            self.claims.append((claim, group))

    def of_larger_communicators(self, size: int) -> None:
        """A communicator of more members than any before: the numbers in those were places."""
        self._forget_places()
        self.comm_size, self.comms_are_groups, self.comm_devices = size, False, {}

    def of_groups_alone(self) -> None:
        """No communicator is that of the world: all of their numbers are places in groups."""
        self._forget_places()
        self.comms_are_groups = True

    def _forget_places(self) -> None:
        for place in self.comm_devices:
            notes = self.ranks.get(place)
            if notes is not None:
                self.processes.forget(place)
                notes.pid, notes.host = None, None
                if not notes.tells():
                    del self.ranks[place]

    def withdraw(self, kind: str) -> None:
        """Forget all claims of a kind: their writer has taken them back."""
        kept = [(same, i) for same, i in self._said.items() if same[0] != kind]
        self.claims = [self.claims[i] for _, i in kept]
        self._said = {same: i for i, (same, _) in enumerate(kept)}

    def restart(self) -> None:
        """A new attempt begins: what the last one told is about another life of the job."""
        attempt = self.attempt + 1
        world = max(self.world_size or 0, max(self.ranks, default=-1) + 1) or None
        earlier = {f.name: getattr(self, f.name) for f in fields(self)} if self._tells() else None
        earlier, processes = earlier or self._earlier, self.processes.of_next_attempt()
        self.__init__()  # type: ignore[misc]
        self.processes = processes
        self.world_size, self.attempt, self._earlier = world, attempt, earlier

    def fall_back(self) -> None:
        """Where the newest attempt says nothing of how it fared: the last one that does."""
        if self._earlier is None or self._tells():
            return
        attempt, lines = self.attempt, self.lines
        for name, value in self._earlier.items():
            setattr(self, name, value)
        self.attempt, self.lines, self.fell_back = attempt, lines, True

    def _tells(self) -> bool:
        """Whether anything in it is evidence, not only who has written."""
        return bool(
            self.claims
            or self.troubles
            or self.nobodys
            or self.ends.failures
            or self.ends.of_tasks
            or self.stacks
            or any(
                n.operations or n.counters or n.troubles or n.exit_text or n.exit_code or n.seen
                for n in self.ranks.values()
            )
        )


def rank_ranges(text: str) -> tuple[int, ...]:
    """Ranks from ``0, 2, 5-7``; elided lists (``...``) give what is there."""
    ranks: list[int] = []
    for low, high in re.findall(r"(\d{1,7})(?:\s*-\s*(\d{1,7}))?", text):
        first, last = int(low), int(high or low)
        if first <= last <= MAX_RANK and len(ranks) <= MAX_RANK:
            ranks.extend(range(first, last + 1))
    return tuple(ranks)
