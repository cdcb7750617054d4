"""Everything that one attempt of a job has shown in its log, before it becomes fragments."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, cast

from hangscope.trace.job_log.evidence.notes import (
    Ends,
    GroupId,
    LoggedException,
    Operation,
    ProcessStacks,
    Raised,
    RankNotes,
    UnattributedException,
)
from hangscope.trace.job_log.evidence.processes import ProcessRanks
from hangscope.trace.job_log.lines.line import LogLine, NumberMeaning
from hangscope.trace.model import MAX_RANK, NO_DETAILS, Claim, ClaimDetails, ClaimKind

MAX_CLAIMS = 20_000
MAX_MENTIONS = 1_000_000
"""Limit on ranks mentioned in reports: a few characters may mention a hundred thousand ranks, and
every rank of a large job prints the same report."""
_MOST_RAISED = 50
"""Exceptions kept of one rank."""
Part = TypeVar("Part")


@dataclass(slots=True)
class Stated:
    """A statement of the log. What follows from the lines of all ranks is settled at the end."""

    claim: Claim
    group: GroupId | None = None
    line: int = 0


@dataclass(slots=True)
class Attempt:
    """One attempt of a job. Rows and readers fill it in line by line.

    What a kind of line keeps for itself until the log has ended is a `part`.
    """

    ranks: dict[int, RankNotes] = field(default_factory=dict)
    stated: list[Stated] = field(default_factory=list)
    world_size: int | None = None
    group_sizes: dict[str, int] = field(default_factory=dict)
    """By the name of a group: how many members a line says it has."""
    processes: ProcessRanks = field(default_factory=ProcessRanks)
    ends: Ends = field(default_factory=Ends)
    raised: Raised = field(default_factory=Raised)
    stacks: list[ProcessStacks] = field(default_factory=list)
    helpers: int = 0
    """How many stacks were those of data loader workers and launchers."""
    native_stacks: bool = False
    """The log has a debugger's frames, which name only C functions."""
    writer: int | None = None
    """The rank that wrote the newest line with a rank."""
    quoted: set[int] = field(default_factory=set)
    """Ranks of which nothing is known but an exception that the job's own output shows."""
    elastic: bool = False
    """The log has output of torchrun or MPICH's launcher: each starts several processes, and a
    scheduler's task is one launcher."""
    shared_tasks: bool = False
    """A line with a task number has another rank: a task holds several ranks."""
    instead: NumberMeaning | None = None
    """The correct meaning of its numbers, if a line contradicts the assumed one."""
    cut: bool = False
    """The log is truncated, for example in the middle of a watchdog's line."""
    thinned: bool = False
    """Similar watchdog lines were deduplicated, so some are missing."""
    given_up: bool = False
    """A watchdog has given up."""
    gave_up_ns: int = 0
    """When the last watchdog gave up."""
    stopped_line: int = 0
    """The first line which says that the job was told to stop; 0 if there is none."""
    at_end: dict[Hashable, Callable[[], object]] = field(default_factory=dict)
    """What is to be recorded once the log has ended, by whoever records it: what a newer report of
    the same kind tells replaces that of the last."""
    in_pieces: bool = False
    """It announces operations or communicators, which the logs of all ranks tell together."""
    lines: int = 0
    mentions: int = 0
    """How often reports mentioned ranks."""
    number: int = 0
    """How many attempts came before it."""
    earlier: Attempt | None = None
    """The last attempt before this one with any attempt."""
    fell_back: bool = False
    """A newer one says nothing."""
    over: Literal["", "over", "again"] = ""
    """Whether a line began a new attempt, and whether it is to be read again as a part of that."""
    _parts: dict[type, object] = field(default_factory=dict)
    _said: dict[tuple[object, ...], int] = field(default_factory=dict)

    def of(self, rank: int) -> RankNotes:
        """The notes about a rank, created on first use; those of impossible ranks are discarded."""
        if not 0 <= rank <= MAX_RANK:
            return RankNotes(-1)
        notes = self.ranks.get(rank)
        if notes is None:
            notes = self.ranks[rank] = RankNotes(rank)
        return notes

    def has_ranks(self, count: int | None) -> None:
        """Note a number of ranks that a line states; the largest that is possible counts."""
        if count is not None and 0 < count <= MAX_RANK + 1:
            self.world_size = max(self.world_size or 0, count)

    def raises(self, trouble: LoggedException, line: LogLine) -> None:
        """Note an exception of whoever wrote the line."""
        if line.rank is None:
            self.raised.pending.append(
                UnattributedException(trouble, line.local_rank, line.pid, line.machine)
            )
        elif len(self.of(line.rank).exceptions) < _MOST_RAISED:
            self.of(line.rank).exceptions.append(trouble)

    def part(self, kind: type[Part]) -> Part:
        """What lines of one kind keep until the log has ended."""
        known = self._parts.get(kind)
        if known is None:
            known = self._parts[kind] = kind()
        return cast("Part", known)

    def claim(
        self,
        kind: ClaimKind,
        line: LogLine,
        *,
        accused: tuple[int | None, ...] = (),
        group: GroupId | None = None,
        seq: int | None = None,
        op: str | None = None,
        certain: bool = True,
        reporter: int | None = None,
        words: str = "",
        details: ClaimDetails = NO_DETAILS,
    ) -> Stated:
        """Record what a line states outright; the text is kept short.

        Lines that state the same about the same ranks become one claim, unless ``words`` differ.
        Of ``accused``, unknown ranks do not count.
        """
        if details.stopped:
            self.stopped_line = self.stopped_line or line.number
        by = reporter if reporter is not None else line.rank
        ranks = tuple(sorted(r for r in set(accused) if r is not None and 0 <= r <= MAX_RANK))
        claim = Claim(
            kind, ranks, by, seq=seq, op=op, text=line.excerpt, at_ns=line.at_ns, certain=certain,
            details=details,
        )  # fmt: skip
        same = (kind, ranks, by, seq, op, words)
        known = self._said.get(same)
        if known is not None:  # a repetition, whose details may complete the first
            first = self.stated[known]
            merged = first.claim.details.completed_by(details)
            first.claim, first.group = replace(first.claim, details=merged), first.group or group
            return first
        said = Stated(claim, group, line.number)
        if len(self.stated) < MAX_CLAIMS:
            self._said[same] = len(self.stated)
            self.stated.append(said)
        return said

    def infer(
        self, kind: ClaimKind, text: str = "", at_ns: int = 0, *, certain: bool = False,
        seq: int | None = None, op: str | None = None, details: ClaimDetails = NO_DETAILS,
    ) -> None:  # fmt: skip
        """Record what follows from several lines."""
        claim = Claim(
            kind, text=text, at_ns=at_ns, certain=certain, seq=seq, op=op, details=details
        )
        self.stated.append(Stated(claim))

    def withdraw(self, kind: str) -> None:
        """Delete all claims of a kind, which their writer has retracted."""
        kept = [(same, i) for same, i in self._said.items() if same[0] != kind]
        self.stated = [self.stated[i] for _, i in kept]
        self._said = {same: i for i, (same, _) in enumerate(kept)}

    @property
    def world_at_least(self) -> int:
        """How many ranks there are at least, by the stated world size and by those heard from."""
        return max(self.world_size or 0, max(self.ranks, default=-1) + 1)

    @property
    def overdue(self) -> list[Operation]:
        """The operations for which ranks have given up waiting."""
        return [operation for notes in self.ranks.values() for operation in notes.overdue]

    def restart(self, *, again: bool = False) -> None:
        """Note that the line being read begins a new attempt, to which (``again``) what it says
        belongs."""
        self.over = "again" if again else "over"

    def next_attempt(self) -> Attempt:
        """What is known at the beginning of the next attempt."""
        found = Attempt(number=self.number + 1, world_size=self.world_at_least or None)
        found.processes = self.processes.of_next_attempt()
        found.earlier = self if self.tells() else self.earlier
        return found

    def newest_that_tells(self) -> Attempt:
        """The newest attempt with attempt; this one if there is none."""
        earlier = self.earlier
        if earlier is None or self.tells():
            return self
        earlier.number, earlier.lines, earlier.fell_back = self.number, self.lines, True
        return earlier

    def tells(self) -> bool:
        """Whether there is any attempt beyond who has written."""
        raised, ends = self.raised, self.ends
        if self.stated or raised.pending or raised.anonymous or self.stacks:
            return True
        return bool(ends.failures or ends.of_tasks) or any(
            n.operations or n.counters or n.exceptions or n.exit_text or n.exit_code or n.seen
            for n in self.ranks.values()
        )


def rank_ranges(text: str) -> tuple[int, ...]:
    """Ranks from ``0, 2, 5-7``; elided lists (``...``) yield the ranks that are listed."""
    ranks: list[int] = []
    for low, high in re.findall(r"(\d{1,7})(?:\s*-\s*(\d{1,7}))?", text):
        first, last = int(low), int(high or low)
        if first <= last <= MAX_RANK and len(ranks) <= MAX_RANK:
            ranks.extend(range(first, last + 1))
    return tuple(ranks)
