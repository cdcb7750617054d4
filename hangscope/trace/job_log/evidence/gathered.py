"""The evidence gathered from one job log before it becomes fragments."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from hangscope.trace.job_log.evidence.notes import (
    GroupId,
    LoggedException,
    ProcessStacks,
    RankNotes,
    UnattributedException,
)
from hangscope.trace.job_log.evidence.process_ends import Ends
from hangscope.trace.job_log.evidence.process_ranks import ProcessRanks
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.rank_numbers import NumberMeaning
from hangscope.trace.model import MAX_RANK, Claim, ClaimDetails, ClaimKind, Signature

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_CLAIMS = 20_000
MAX_MENTIONS = 1_000_000
"""Limit on ranks mentioned in reports: a few characters may mention a hundred thousand ranks, and
every rank of a large job prints the same report."""
MAX_SAME_NUMBER = 64
"""Maximum operations of one rank with the same sequence number; only forged logs have more."""
Comparison = tuple[int, dict[int, Signature]]
"""The writer's group rank, and what members ran, by group rank."""


class StoreBarrier(NamedTuple):
    """The newest message of a rank that waits at a store-based barrier."""

    line: int
    rank: int
    joined: int
    """How many of ``world`` ranks had joined by then."""
    world: int
    said_by: set[int]
    """The ranks that have reported this number."""


@dataclass(slots=True)
class DesyncReport:
    """What the first lines of a desync report state about the following ones."""

    seq: int | None = None
    """The collective that the rows are about; None until it is stated."""
    of_subgroup: bool = False
    """Its numbers are ranks inside a smaller group."""
    started: dict[int, int] = field(default_factory=dict)
    """By rank: the newest collective that has started on it, according to any report."""


@dataclass(slots=True)
class Communicators:
    """NCCL's largest communicators, whose members' numbers are ranks if there is one of that
    size."""

    size: int | None = None
    devices: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Host and device of each process, by its rank in them."""
    are_groups: bool = False
    """There are several of that size: their numbers are ranks inside groups."""


@dataclass(slots=True)
class Raised:
    """Exceptions that are not (yet) a rank's."""

    pending: list[UnattributedException] = field(default_factory=list)
    """Of writers whose rank is not yet known."""
    anonymous: list[LoggedException] = field(default_factory=list)
    """Without any hint of their writer."""
    unranked: list[LoggedException] = field(default_factory=list)
    """Of processes whose rank is unknown."""


@dataclass(slots=True)
class KernelWaits:
    """Which ranks' kernels gave up waiting for which, as they print it."""

    on: dict[int, set[int]] = field(default_factory=dict)
    are_places: bool = False
    """Whether the numbers are ranks inside a smaller group."""


@dataclass(slots=True)
class Evidence:
    """Everything that one attempt in a log has shown so far.

    Readers fill it in line by line; it is completed in place once all lines are read (`resolving`).
    """

    ranks: dict[int, RankNotes] = field(default_factory=dict)
    claims: list[tuple[Claim, GroupId | None]] = field(default_factory=list)
    world_size: int | None = None
    group_sizes: dict[str, int] = field(default_factory=dict)
    """By the name of a group: how many members a line says it has."""
    processes: ProcessRanks = field(default_factory=ProcessRanks)
    ends: Ends = field(default_factory=Ends)
    comparisons: list[tuple[LogLine, int, Comparison]] = field(default_factory=list)
    """Lines in which torch compared two ranks' operations, their times (ns), and their content."""
    desync: DesyncReport = field(default_factory=DesyncReport)
    """The report being read."""
    writer: int | None = None
    """The rank that wrote the newest line with a rank."""
    shared_places: bool = False
    """Two processes used the same number for themselves: it is a rank inside smaller groups."""
    communicators: Communicators = field(default_factory=Communicators)
    raised: Raised = field(default_factory=Raised)
    stacks: list[ProcessStacks] = field(default_factory=list)
    helpers: int = 0
    """How many stacks were those of data loader workers and launchers."""
    native_stacks: bool = False
    """The log has a debugger's frames, which name only C functions."""
    elastic: bool = False
    """The log has output of torchrun or MPICH's launcher: each starts several processes, and a
    scheduler's task is one launcher."""
    shared_tasks: bool = False
    """A line with a task number has another rank: a task holds several ranks."""
    instead: NumberMeaning | None = None
    """The correct meaning of its numbers, if a line contradicts the assumed one."""
    cut: bool = False
    """The log is truncated, for example in the middle of a watchdog's line."""
    meeting: StoreBarrier | None = None
    thinned: bool = False
    """Similar watchdog lines were deduplicated, so some are missing."""
    given_up: bool = False
    """A watchdog has given up."""
    stopped_line: int = 0
    """The first line which says that the job was told to stop; 0 if there is none."""
    gave_up_ns: int = 0
    """When the last watchdog gave up."""
    phase: tuple[LogLine, int] | None = None
    """The newest line (and its time) with which the job begins a checkpoint or the like."""
    trapped: bool = False
    """A kernel ended itself because it had waited too long for a peer."""
    unattributed_ends: int = 0
    """Number of ended processes whose rank is unknown."""
    attempt: int = 0
    fell_back: bool = False
    """It is about an earlier attempt, because the newest says nothing."""
    at_end: dict[str, Callable[[], object]] = field(default_factory=dict)
    """What is to be recorded once the log has ended, by the kind of report: a newer one of the same
    kind replaces it."""
    kernels: KernelWaits = field(default_factory=KernelWaits)
    lost_tasks: set[int] = field(default_factory=set)
    """JAX's tasks whose heartbeat is missing."""
    repeats: tuple[int, int] | None = None
    """The local rank whose traceback its parent repeats, and the last line of that."""
    in_pieces: bool = False
    """It announces operations or communicators, which the logs of all ranks tell together."""
    lines: int = 0
    mentions: int = 0
    """How often reports mentioned ranks."""
    earlier: Evidence | None = None
    """The last attempt before this one with any evidence."""
    over: Literal["", "over", "again"] = ""
    """Whether a line began a new attempt, and whether it is to be read again as a part of that."""
    _said: dict[tuple[object, ...], int] = field(default_factory=dict)

    def of(self, rank: int) -> RankNotes:
        """The notes about a rank, created on first use; those of impossible ranks are discarded."""
        if not 0 <= rank <= MAX_RANK:
            return RankNotes(-1)
        notes = self.ranks.get(rank)
        if notes is None:
            notes = self.ranks[rank] = RankNotes(rank)
        return notes

    def claim(
        self,
        kind: ClaimKind,
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
        """Record what a line states outright; the text is kept short.

        Lines that state the same about the same ranks become one claim, unless ``words`` differ.
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
        if known is not None:  # a repetition, whose details may complete the first
            first, its_group = self.claims[known]
            told = {k: v for k, v in first.details.items() if v is not None}
            merged = cast("ClaimDetails", {**details, **told})
            self.claims[known] = (replace(first, details=merged), its_group or group)
        elif len(self.claims) < MAX_CLAIMS:
            self._said[same] = len(self.claims)
            self.claims.append((claim, group))

    def of_larger_communicators(self, size: int) -> None:
        """A larger communicator than any before: numbers in the smaller ones were group ranks."""
        self._forget_places()
        self.communicators = Communicators(size)

    def of_groups_alone(self) -> None:
        """No communicator is the world's: all their numbers are group ranks."""
        self._forget_places()
        self.communicators.are_groups = True

    def _forget_places(self) -> None:
        for place in self.communicators.devices:
            notes = self.ranks.get(place)
            if notes is not None:
                self.processes.forget(place)
                notes.pid, notes.host = None, None
                if not notes.tells():
                    del self.ranks[place]

    def withdraw(self, kind: str) -> None:
        """Delete all claims of a kind, which their writer has retracted."""
        kept = [(same, i) for same, i in self._said.items() if same[0] != kind]
        self.claims = [self.claims[i] for _, i in kept]
        self._said = {same: i for i, (same, _) in enumerate(kept)}

    @property
    def world_at_least(self) -> int:
        """How many ranks there are at least, by the stated world size and by those heard from."""
        return max(self.world_size or 0, max(self.ranks, default=-1) + 1)

    def restart(self, *, again: bool = False) -> None:
        """Note that the line being read begins a new attempt, to which (``again``) what it says
        belongs."""
        self.over = "again" if again else "over"

    def next_attempt(self) -> Evidence:
        """What is known at the beginning of the next attempt."""
        found = Evidence(attempt=self.attempt + 1, world_size=self.world_at_least or None)
        found.processes = self.processes.of_next_attempt()
        found.earlier = self if self._tells() else self.earlier
        return found

    def newest_that_tells(self) -> Evidence:
        """The newest attempt with evidence; this one if there is none."""
        earlier = self.earlier
        if earlier is None or self._tells():
            return self
        earlier.attempt, earlier.lines, earlier.fell_back = self.attempt, self.lines, True
        return earlier

    def _tells(self) -> bool:
        """Whether there is any evidence beyond who has written."""
        return bool(
            self.claims
            or self.raised.pending
            or self.raised.anonymous
            or self.ends.failures
            or self.ends.of_tasks
            or self.stacks
            or any(
                n.operations or n.counters or n.exceptions or n.exit_text or n.exit_code or n.seen
                for n in self.ranks.values()
            )
        )


def rank_ranges(text: str) -> tuple[int, ...]:
    """Ranks from ``0, 2, 5-7``; elided lists (``...``) yield the ranks that are listed."""
    ranks: list[int] = []
    for low, high in re.findall(r"(\d{1,7})(?:\s*-\s*(\d{1,7}))?", text):
        first, last = int(low), int(high or low)
        if first <= last <= MAX_RANK and len(ranks) <= MAX_RANK:
            ranks.extend(range(first, last + 1))
    return tuple(ranks)
