"""The Trace: what every source becomes, and all that the diagnosis ever sees.

Bulk data sits in numpy structured arrays (one row per recorded operation), small data in frozen
dataclasses. Nothing here reads a file, and nothing here knows which source a row came from.

Conventions
-----------
* Ranks are global ranks; ``-1`` means "none" or "unknown".
* Times are integer nanoseconds since the epoch; ``0`` means "unknown" or "not yet".
* Sequence numbers are the Flight Recorder's: ``collective_seq`` counts collectives of a group from
  1 (a coalesced batch counts once), ``p2p_seq`` counts point-to-point operations. Every row carries
  both current counters.
* Column indexes (``group``, ``signature``, ``stack``) point into the tuples of the `Trace`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hangscope.ring import layout

if TYPE_CHECKING:
    import pandas as pd

NONE = -1
"""No rank, no index, no sequence number."""


class State(IntEnum):
    """How far an operation got, as the Flight Recorder names it."""

    SCHEDULED = 0
    STARTED = 1
    COMPLETED = 2


class Flag(IntFlag):
    """What else is known of one recorded operation."""

    RETIRED = 1
    """The recorder stopped watching it: finished, or timed out where `State` is not COMPLETED."""
    P2P = 2
    """A send or recv: aligned by pair order, never by collective sequence."""
    COALESCED_MEMBER = 4
    """One operation inside a coalesced batch; the batch itself is another row."""
    COALESCED_BATCH = 8
    """The row that stands for a whole coalesced batch (its terminator or its one fused entry)."""
    ASYNC = 16
    """Issued with ``async_op=True``."""
    UNOBSERVED = 32
    """Its completion cannot be seen in this source: "not completed" proves nothing."""
    SYNTHETIC = 64
    """Not recorded itself but concluded from a counter or a log line."""
    TIMED_OUT = 128
    """The runtime itself said that this operation ran into its timeout."""
    FAILED = 256
    """The call, or the wait for it, raised."""
    BLOCKING = 512
    """A send or recv whose caller waits for it at once. A pair with neither this nor `ASYNC` comes
    from a source that does not tell."""
    WAITED = 1024
    """An asynchronous send or recv that the job has begun to wait for."""


_SLOT_OFFSETS = {name: int(place[1]) for name, place in (layout.SLOT.fields or {}).items()}
# name: (type, which field of a ring's slot lies at the same place)
_RECORD_FIELDS = {
    "rank": (np.int32, "commit"),
    "group": (np.int32, "group"),
    "collective_seq": (np.int64, "collective_seq"),
    "p2p_seq": (np.int64, "p2p_seq"),
    "op_id": (np.int64, "op_id"),
    "record_id": (np.int64, "record_id"),
    "signature": (np.int32, "signature"),
    "stack": (np.int32, "stack"),
    "peer": (np.int32, "peer"),  # global rank of the other side of a send or recv; -1: none or any
    # global rank of a collective's root, or the tag of a send or recv; -1: none or unknown
    "root": (np.int32, "root"),
    "created_ns": (np.int64, "created_ns"),
    "started_ns": (np.int64, "started_ns"),
    "completed_ns": (np.int64, "completed_ns"),
    "history": (np.uint64, "history"),  # running hash of the group's signatures; 0: unknown
    "thread": (np.int64, "input_numel"),
    "timeout_ms": (np.int64, "timeout_ms"),
    "state": (np.uint8, "state"),
    "flags": (np.uint16, "flags"),
}
RECORD_DTYPE = np.dtype(
    {
        "names": list(_RECORD_FIELDS),
        "formats": [kind for kind, _ in _RECORD_FIELDS.values()],
        "offsets": [_SLOT_OFFSETS[place] for _, place in _RECORD_FIELDS.values()],
        "itemsize": layout.SLOT.itemsize,
    }
)
"""One row per recorded operation.

Laid out as a ring's slot is, so that the slots of a ring become rows by one copy and a few columns
written over: reading millions of records is then little more than reading their bytes.
"""

MEMBER_DTYPE = np.dtype(
    [
        ("rank", np.int32),
        ("group", np.int32),
        ("enqueued", np.int64),  # last collective_seq this rank issued; -1: unknown, 0: none
        ("started", np.int64),
        ("completed", np.int64),
        ("p2p_enqueued", np.int64),
        ("history", np.uint64),  # running hash at `enqueued`; 0: unknown
        ("enqueued_ns", np.int64),
        ("completed_ns", np.int64),
    ]
)
"""One row per (rank, group) with counters (``pg_status``, a ring's group table, log lines)."""

Records = npt.NDArray[np.void]
"""An array of `RECORD_DTYPE` or `MEMBER_DTYPE`."""


class Frame(NamedTuple):
    """One stack frame; stacks are innermost frame first, as in Flight Recorder dumps."""

    name: str
    filename: str
    line: int


Stack = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """What an operation is, apart from when, by whom and in which group.

    ``op`` is the canonical name (see `hangscope.trace.operations`), ``raw`` the name as recorded.
    Sizes are one tuple per tensor; ``None`` where the source does not say.
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
    """Total over the input tensors where only that is known (logs); else derived from the sizes."""
    output_numel: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A process group, identified by name, members and epoch: names alone repeat.

    ``ranks`` are global ranks in group-rank order; empty where no source gave them.
    """

    name: str
    desc: str = ""
    ranks: tuple[int, ...] = ()
    epoch: int = 0
    backend: str = ""
    size: int | None = None
    """Number of members where it is known without the list."""
    listed: bool = True
    """Whether a source lists the members; else ``ranks`` are those who were heard of."""

    @property
    def label(self) -> str:
        """The name people use: the description where it says more than a default."""
        if self.desc and self.desc not in ("undefined", "default_pg"):
            return self.desc
        if self.desc == "default_pg":
            return "default"
        return self.name or "default"


@dataclass(frozen=True, slots=True)
class Phase:
    """What a rank is doing outside collectives: ``init_process_group``, ``checkpoint``, ..."""

    name: str
    since_ns: int = 0
    detail: str = ""


CAUSED_BY = "\ncaused by "
"""Behind it an exception's message tells what the exception was raised from (``from error``)."""


@dataclass(frozen=True, slots=True)
class ExceptionFacts:
    """An uncaught exception: ``type_name`` as ``module.Class``, frames innermost first."""

    type_name: str
    message: str = ""
    stack: Stack = ()
    at_ns: int = 0
    thread_name: str = "MainThread"
    is_main_thread: bool = True
    native_id: int = 0
    """The kernel's number of that thread, as in the records; 0 where the source does not say."""


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


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread's Python stack at one moment."""

    name: str
    is_main: bool
    stack: Stack
    sampled_ns: int = 0
    source: str = "sample"
    """``"sample"`` (taken by the rank's own watcher), ``"signal"`` (faulthandler, no GIL needed),
    ``"py-spy"`` or ``"log"``."""
    native_id: int = 0
    """The kernel's number of the thread, as in the records; 0 where the source does not say."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What is known of one rank's process, whatever the source. ``None`` means unknown."""

    rank: int
    host: str | None = None
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
    heartbeat_ns: int = 0
    heartbeat_interval_s: float | None = None
    gil_blocked: bool | None = None
    """The heartbeat thread has not run for several intervals although the process is alive and
    not stopped: something holds the GIL."""
    cpu_busy: float | None = None
    """CPU seconds used per second between two looks; None after a single look."""
    stack_moved: bool | None = None
    """The main thread's stack differed between two looks."""
    phases: tuple[Phase, ...] = ()
    """Open phases, outermost first; the last is what the rank is in now."""
    initialized: bool | None = None
    """Whether ``init_process_group`` has returned."""
    finalized: bool | None = None
    """Whether ``destroy_process_group`` of the default group has been entered."""
    exit: ExitFacts | None = None
    exception: ExceptionFacts | None = None
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
    clock_offset_ns: int = 0
    """Add to this rank's times to get the reference clock."""
    unobservable: tuple[str, ...] = ()
    """What this rank does that no record shows (``"cuda graph replay"``, ...)."""

    @property
    def main_stack(self) -> Stack:
        """The newest stack of the main thread, or an empty one."""
        mains = [t for t in self.threads if t.is_main and t.stack]
        return max(mains, key=lambda t: t.sampled_ns).stack if mains else ()


@dataclass(frozen=True, slots=True)
class Claim:
    """Something a log states outright, kept apart from what was recorded.

    ``kind`` is one of ``timeout``, ``desync_report``, ``fingerprint_mismatch``,
    ``monitored_barrier``, ``missing_ranks``, ``device_error``, ``network_error``,
    ``ddp_unused_parameters``, ``ddp_marked_twice``, ``ddp_model_mismatch``, ``rendezvous``,
    ``launcher_failure``, ``oom``, ``nan``, ``dump_signal``, ``size_mismatch``,
    ``reduction_corrupt``, ``barrier_timeout``, ``unreachable``, ``shared_device``
    or ``other``.
    """

    kind: str
    accused: tuple[int, ...] = ()
    """Ranks that the line itself names as at fault or absent."""
    reporter: int | None = None
    group: int = NONE
    seq: int | None = None
    op: str | None = None
    text: str = ""
    at_ns: int = 0
    source: int = NONE
    """Index into `Trace.sources`."""
    certain: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that could not be used: its printable name, and why."""

    path: str
    why: str

    @property
    def line(self) -> str:
        """As reports print it."""
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
    """What one source says about one rank, with tables of its own.

    Readers return fragments; `hangscope.trace.merge` makes one `Trace` out of them. ``group``,
    ``signature`` and ``stack`` columns index this fragment's own tables. ``facts.rank`` is ``-1``
    where a source speaks of no particular rank (it may still hold claims).
    """

    source: Source
    facts: RankFacts
    records: Records = field(default_factory=lambda: np.zeros(0, RECORD_DTYPE))
    members: Records = field(default_factory=lambda: np.zeros(0, MEMBER_DTYPE))
    groups: tuple[Group, ...] = ()
    common_groups: Sequence[Group] | None = None
    """A table that several fragments share, where the ``group`` column of the records indexes that
    one and not ``groups``; all in it have members."""
    signatures: tuple[Signature, ...] = ()
    stacks: Sequence[Stack] = ()
    claims: tuple[Claim, ...] = ()
    warnings: tuple[str, ...] = ()
    timeout_s: float | None = None
    """`HANGSCOPE_TIMEOUT` of the run where the source knows it."""
    implied: Records | None = None
    """What the records imply of the counters (`hangscope.trace.merge_records.counters_of`), where
    the reader has found it out while they were at hand."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One job at one moment, from whatever was left of it.

    ``records`` are sorted by rank and, within a rank, in the order they were issued.
    ``ranks`` has an entry for every rank any source speaks about; ranks known only because a group
    lists them have no entry (see `missing_ranks`).
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
    unread: tuple[Unread, ...] = ()
    """Files that could not be used; ``warnings`` has a line for each."""
    world_size: int | None = None
    live: bool = False
    """At least one rank's process was seen alive on this machine while reading."""
    looks: int = 1
    """How many times the ranks were looked at (2 after a live comparison)."""
    timeout_s: float = 120.0
    observed_ns: int = 0

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that belong to the job but of which no source says anything."""
        expected = set(range(self.world_size or 0))
        for group in self.groups:
            expected.update(group.ranks)
        return tuple(sorted(expected - set(self.ranks)))

    @property
    def only_logs(self) -> bool:
        """Whether all that was given are job logs, in which silence means little."""
        return {source.format for source in self.sources} == {"job-log"}

    def frame(self) -> pd.DataFrame:
        """The records as a pandas table with readable columns, one row per operation."""
        import pandas as pd

        table = pd.DataFrame({name: self.records[name] for name in RECORD_DTYPE.names or ()})
        ops = np.array([s.op for s in self.signatures] or [""], dtype=object)
        labels = np.array([g.label for g in self.groups] or [""], dtype=object)
        if len(table):
            table.insert(2, "op", ops[self.records["signature"]])
            table.insert(2, "group_label", labels[self.records["group"]])
        return table
