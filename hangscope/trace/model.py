"""The Trace: what every source is turned into, and all that the diagnosis sees.

Bulk data is in numpy structured arrays (`hangscope.trace.rows`, which states the conventions),
small data in frozen dataclasses. Facts about a rank's process are in `hangscope.trace.facts`.
Nothing here reads a file or knows which source a row came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hangscope.ring.device_reader import DeviceRing
from hangscope.trace.claim_details import NO_DETAILS, ClaimDetails, ClaimKind
from hangscope.trace.facts import (
    CAUSED_BY,
    ON_ITS_WAY_OUT,
    ExceptionFacts,
    ExitFacts,
    Frame,
    KernelWait,
    Phase,
    RankFacts,
    Stack,
    ThreadStack,
)
from hangscope.trace.rows import (
    MAX_RANK,
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Flag,
    Records,
    State,
    flagged,
)
from hangscope.trace.unranked_process import UnrankedProcess

__all__ = [
    "CAUSED_BY",
    "MAX_RANK",
    "MEMBER_DTYPE",
    "NONE",
    "NO_DETAILS",
    "ON_ITS_WAY_OUT",
    "RECORD_DTYPE",
    "Claim",
    "ClaimDetails",
    "ClaimKind",
    "ExceptionFacts",
    "ExitFacts",
    "Flag",
    "Fragment",
    "Frame",
    "Group",
    "KernelWait",
    "Phase",
    "RankFacts",
    "Records",
    "Signature",
    "Source",
    "Stack",
    "State",
    "ThreadStack",
    "Trace",
    "UnrankedProcess",
    "Unread",
    "flagged",
]
NCCL_GROUP = "nccl:"
"""How the name of a group begins that is a communicator's; its hash follows."""
_SAYS_NOTHING = frozenset(
    {"undefined", "nccl", "nccl2", "ncclx", "rccl", "rcclx", "gloo", "xccl", "hccl", "mpi", "ucc"}
)


@dataclass(frozen=True, slots=True)
class Signature:
    """What an operation is, regardless of when, by which rank and in which group it was issued.

    ``op`` is the canonical name (see `hangscope.trace.operations`), ``raw`` the name as recorded.
    Sizes are one tuple per tensor; ``None`` if the source does not say.
    """

    op: str
    raw: str = ""
    backend: str = ""
    input_sizes: tuple[tuple[int, ...], ...] | None = None
    output_sizes: tuple[tuple[int, ...], ...] | None = None
    input_dtypes: tuple[str, ...] | None = None
    output_dtypes: tuple[str, ...] | None = None
    reduce_op: str | None = None
    input_splits: tuple[int, ...] | None = None
    output_splits: tuple[int, ...] | None = None
    input_numel: int | None = None
    """Total over the input tensors if only that is known (logs); else derived from the sizes."""
    output_numel: int | None = None


def group_label(name: str, desc: str) -> str:
    """The name people use for a group: the description where it says more than a default.

    torchcomms describes each of its communicators by the backend.
    """
    if desc == "default_pg":
        return "default"
    return desc if desc and desc not in _SAYS_NOTHING else name or "default"


@dataclass(frozen=True, slots=True)
class Group:
    """A process group, identified by name, members and epoch, because names repeat.

    ``ranks`` are global ranks in group-rank order; empty if no source gave them.
    """

    name: str
    desc: str = ""
    ranks: tuple[int, ...] = ()
    epoch: int = 0
    backend: str = ""
    size: int | None = None
    """The number of members if it is known without the list."""
    listed: bool = True
    """Whether a source lists the members; else ``ranks`` are those that were observed."""
    place: int | None = None
    """For a handmade group, the group rank of its only known member. Who the others are is not
    recorded; they may be processes of another job."""

    @property
    def is_side(self) -> bool:
        """Whether it is one member's side of a communicator of which NCCL alone has told."""
        alone = self.place is not None and len(self.ranks) == 1
        return alone and self.name.startswith(NCCL_GROUP)

    @property
    def outsiders(self) -> int:
        """How many members are not known to be ranks of this job."""
        return (self.size or 1) - 1 if self.place is not None else 0

    @property
    def label(self) -> str:
        """The name people use: the description, unless it is only a default."""
        return group_label(self.name, self.desc)


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that a source states outright, kept apart from recorded operations."""

    kind: ClaimKind
    accused: tuple[int, ...] = ()
    """Ranks that the statement itself names as at fault or absent."""
    reporter: int | None = None
    group: int = NONE
    seq: int | None = None
    op: str | None = None
    text: str = ""
    at_ns: int = 0
    source: int = NONE
    """Index into `Trace.sources`."""
    certain: bool = True
    details: ClaimDetails = NO_DETAILS


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that could not be used: its printable name, and why."""

    path: str
    why: str

    @property
    def line(self) -> str:
        """The line that reports print."""
        return f"{self.path}: {self.why}"


@dataclass(frozen=True, slots=True)
class Source:
    """One file (or stream) that was read."""

    path: str
    format: str
    """``hangscope-ring``, ``flight-recorder-pickle``, ``flight-recorder-json``, ``job-log``,
    ``hangscope-journal``."""
    version: str = ""
    rank: int | None = None
    records: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Fragment:
    """What one source says about one rank, with its own tables.

    Readers return fragments; `hangscope.trace.merging.merge` combines them into one `Trace`. The
    ``group``, ``signature`` and ``stack`` columns index this fragment's own tables. ``facts.rank``
    is ``-1`` if the source is about no particular rank (it may still hold claims).
    """

    source: Source
    facts: RankFacts
    records: Records = field(default_factory=lambda: np.zeros(0, RECORD_DTYPE))
    members: Records = field(default_factory=lambda: np.zeros(0, MEMBER_DTYPE))
    groups: tuple[Group, ...] = ()
    common_groups: Sequence[Group] | None = None
    """A table shared by several fragments, if the ``group`` column of the records indexes that one
    instead of ``groups``; all groups in it have members."""
    signatures: tuple[Signature, ...] = ()
    stacks: Sequence[Stack] = ()
    claims: tuple[Claim, ...] = ()
    warnings: tuple[str, ...] = ()
    timeout_s: float | None = None
    """The run's `HANGSCOPE_TIMEOUT`, if the source knows it."""
    looks: int | None = None
    """How many looks at a running job it was written after, if the source knows it."""
    implied: Records | None = None
    """The counters that the records imply (`hangscope.trace.merging.records.counters_of`), if the
    reader has already computed them."""
    device: DeviceRing | None = None
    """What NCCL told in the rank's process, if its plugin was loaded."""
    of_earlier_attempt: bool = False
    """It describes an earlier attempt; the source says nothing about its newest one."""
    in_pieces: bool = False
    """The source holds announcements that only tell something together with other sources."""


class _Missing:
    """Remembers the last answer: of a large job it is asked for dozens of times."""

    def __init__(self) -> None:
        self._last: tuple[int, tuple[Group, ...], Mapping[int, RankFacts], tuple[int, ...]] | None
        self._last = None

    def of(
        self, world_size: int, groups: tuple[Group, ...], ranks: Mapping[int, RankFacts]
    ) -> tuple[int, ...]:
        """Ranks below ``world_size`` or listed in a group, but not among ``ranks``."""
        last = self._last
        if last and last[0] == world_size and last[1] is groups and last[2] is ranks:
            return last[3]
        expected = set(range(world_size))
        for group in groups:
            expected.update(group.ranks)
        missing = tuple(sorted(expected - set(ranks)))
        self._last = world_size, groups, ranks, missing
        return missing


_MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Trace:
    """One job at one moment, from whatever was left of it.

    ``records`` are sorted by rank and, within a rank, in the order of issue. ``ranks`` has an entry
    for every rank that any source mentions; ranks known only as members of a group have no entry
    (see `missing_ranks`).
    """

    records: Records
    members: Records
    groups: tuple[Group, ...]
    signatures: tuple[Signature, ...]
    stacks: Sequence[Stack]
    ranks: Mapping[int, RankFacts]
    claims: tuple[Claim, ...] = ()
    sources: tuple[Source, ...] = ()
    warnings: tuple[str, ...] = ()
    unranked_processes: tuple[UnrankedProcess, ...] = ()
    """Processes with a stack but of unknown rank."""
    unread: tuple[Unread, ...] = ()
    """Files that could not be used; ``warnings`` has a line for each."""
    world_size: int | None = None
    live: bool = False
    """The newest look on record at the ranks' processes found one of them alive."""
    current: bool = True
    """That look was taken while reading: the job runs. Otherwise it is as old as the record."""
    looks: int = 1
    """How many times the ranks were observed (2 after a live comparison)."""
    timeout_s: float = 120.0
    observed_ns: int = 0

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job about which no source says anything."""
        return _MISSING.of(self.world_size or 0, self.groups, self.ranks)

    @property
    def only_logs(self) -> bool:
        """Whether all sources are job logs, in which silence proves little."""
        return {source.format for source in self.sources} == {"job-log"}
