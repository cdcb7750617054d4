"""The binary layout of a ring file, shared by writer and reader.

::

    header      one `HEADER`, 4096 bytes: identity, process, heartbeat, phases, exit
    groups      `group_count` x `GROUP`: one process group each, with its running counters
    slots       `slot_count` x `SLOT`: the ring of records; record n lives in slot (n - 1) % count
    samples     two buffers of `SAMPLE_BYTES`: the newest Python stacks of all threads
    values      append-only area of interned values: texts, signatures, stacks, rank lists

All integers are little-endian and naturally aligned, so the writer's stores of eight bytes are
single stores and a reader can map the slots as a numpy array without parsing. A slot is valid when
its first and last fields, both the record id, agree: the last is written last.

The kernel keeps the pages of a mapped file when its process dies, whatever kills it, so no "dump"
step is needed between a hang and its diagnosis.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

import numpy as np

MAGIC = b"HSRING\x00\x01"
VERSION = 1
PREFIX = b"HSRING"
"""First bytes of a ring file of any version."""

PHASE_DEPTH = 8
SAMPLE_BYTES = 32 * 1024
GROUP_COUNT = 4096
VALUES_BYTES = 4 * 1024 * 1024
HEADER_BYTES = 4096
MAX_SLOTS = 10_000_000
"""The largest value of ``HANGSCOPE_BUFFER``."""
MAX_RANK = (1 << 17) - 1
"""No job has more ranks; a file that says so is damaged. Readers allocate lists of all ranks."""

PHASE = np.dtype([("name", "<u4"), ("detail", "<u4"), ("since_ns", "<i8")])

HEADER = np.dtype(
    {
        "names": [
            # -- fixed when the file is created
            "magic", "version", "header_bytes", "slot_bytes", "slot_count", "group_bytes",
            "group_count", "groups_offset", "slots_offset", "samples_offset", "sample_bytes",
            "values_offset", "values_bytes", "file_bytes",
            "run_id", "host", "boot_id", "torch_version", "python_version", "cwd",
            "attempt", "rank", "local_rank", "world_size", "local_world_size", "node_rank",
            "pid", "parent_pid", "start_ticks", "pid_namespace", "created_ns", "timeout_s",
            "heartbeat_interval_s", "flags", "seal",
            # -- updated while recording
            "ready", "phase_count", "heartbeat_ns", "heartbeat_count", "last_record_id", "dropped",
            "values_used", "values_refused", "groups_used", "groups_refused", "sample_generation",
            "sample_ns", "initialized", "finalized", "exit_kind", "exit_code", "exit_signal",
            "exception", "exit_ns", "exception_ns", "fault_signal", "unobservable", "disabled",
            "clock_offset_ns", "main_thread", "backend", "watcher_thread", "rendezvous",
            "left_stack", "left_ns", "handled_ns", "handled", "device", "phases",
        ],
        "formats": [
            "S8", "<u4", "<u4", "<u4", "<u4", "<u4",
            "<u4", "<u8", "<u8", "<u8", "<u8",
            "<u8", "<u8", "<u8",
            "S96", "S64", "S40", "S48", "S32", "S512",
            "<i4", "<i4", "<i4", "<i4", "<i4", "<i4",
            "<i4", "<i4", "<u8", "<u8", "<i8", "<f8",
            "<f8", "<u8", "S32",
            "<u4", "<u4", "<i8", "<u8", "<u8", "<u8",
            "<u8", "<u8", "<u4", "<u4", "<u8",
            "<i8", "<u4", "<u4", "<u4", "<i4", "<i4",
            "<u4", "<i8", "<i8", "<u4", "<u4", "<u4",
            "<i8", "<i8", "<u4", "<i8", "<u4", "<u4",
            "<i8", "<i8", "<u4", "<u4", (PHASE, (PHASE_DEPTH,)),
        ],
        "offsets": [
            0, 8, 12, 16, 20, 24,
            28, 32, 40, 48, 56,
            64, 72, 80,
            96, 192, 256, 296, 344, 376,
            896, 900, 904, 908, 912, 916,
            920, 924, 928, 936, 944, 952,
            960, 968, 976,
            1024, 1028, 1032, 1040, 1048, 1056,
            1064, 1072, 1080, 1084, 1088,
            1096, 1104, 1108, 1112, 1116, 1120,
            1124, 1128, 1136, 1144, 1148, 1152,
            1160, 1168, 1176, 1184, 1192, 1196,
            1200, 1208, 1216, 1220, 1280,
        ],
        "itemsize": HEADER_BYTES,
    }
)  # fmt: skip
"""``seal`` shows that the process has the run's secret (`hangscope.ring.run_secret`); empty without
one, and in older files. ``dropped`` counts records that a file has lost without a visible gap. The
recorder itself loses none: it stops at its first failure, and ``disabled`` says so. The following
are ids of interned
values, 0 in older files: ``rendezvous``, the text with the address at which ``init_process_group``
meets the other ranks; ``left_stack``, the stack of the main thread that was interrupted by shutdown
before it issued an operation, first at ``left_ns``; ``handled``, the newest exception that was
being handled when an operation was issued, first at ``handled_ns``; ``device``, the text with the
PCI address of the device on which the rank computes."""

FIXED_START = struct.Struct("<8s6I6Q")
"""The header's fields from ``magic`` to ``values_bytes`` as one `struct` call."""
assert FIXED_START.size == HEADER.fields["file_bytes"][1]  # type: ignore[index]

GROUP = np.dtype(
    [
        ("commit", "<u4"),  # 1 once the entry is complete
        ("name", "<u4"),  # ids of interned values
        ("desc", "<u4"),
        ("ranks", "<u4"),
        ("backend", "<u4"),
        ("epoch", "<u4"),
        ("size", "<i4"),
        ("group_rank", "<i4"),
        ("enqueued", "<i8"),  # collective_seq of the newest collective issued; 0: none
        ("started", "<i8"),
        ("completed", "<i8"),  # every collective up to here is finished; -1: cannot be observed
        ("p2p_enqueued", "<i8"),
        ("history", "<u8"),
        ("enqueued_ns", "<i8"),
        ("completed_ns", "<i8"),
        ("op_id", "<i8"),
        ("created_ns", "<i8"),
        ("destroyed_ns", "<i8"),
        ("reserved", "<i8", (2,)),
    ]
)
assert GROUP.itemsize == 128

SLOT = np.dtype(
    [
        ("record_id", "<u8"),
        ("created_ns", "<i8"),
        ("started_ns", "<i8"),
        ("completed_ns", "<i8"),
        ("collective_seq", "<i8"),
        ("p2p_seq", "<i8"),
        ("op_id", "<i8"),
        ("history", "<u8"),
        ("group", "<u4"),  # index into the group table + 1; 0: not known
        ("signature", "<u4"),  # id of an interned value
        ("stack", "<u4"),
        ("peer", "<i4"),
        ("root", "<i4"),  # of a send or recv: its tag
        ("thread", "<u4"),
        ("timeout_ms", "<i8"),
        ("input_numel", "<i8"),
        ("output_numel", "<i8"),
        ("state", "<u4"),
        ("flags", "<u4"),
        ("commit", "<u8"),  # the record id again, written last
    ]
)
SLOT_FORMAT = struct.Struct("=QqqqqqqQIIIiiIqqqIIQ")
"""`SLOT` as one `struct` call, fields in the same order."""
assert SLOT.itemsize == SLOT_FORMAT.size == 128

VALUE_HEADER = struct.Struct("=II")
"""Length in bytes and `ValueKind` in front of every interned value; values are 8-aligned."""

SLOT_GROUP_OFFSET = SLOT.fields["group"][1]  # type: ignore[index]
SLOT_SIGNATURE_OFFSET = SLOT.fields["signature"][1]  # type: ignore[index]
SLOT_STATE_OFFSET = SLOT.fields["state"][1]  # type: ignore[index]
SLOT_COMPLETED_OFFSET = SLOT.fields["completed_ns"][1]  # type: ignore[index]


class ValueKind(IntEnum):
    """What an interned value holds."""

    TEXT = 1
    """UTF-8."""
    SIGNATURE = 2
    """JSON: the signature's fields."""
    FRAME = 3
    """``function NUL file NUL line``, UTF-8."""
    STACK = 4
    """uint32 ids of frames, innermost first."""
    RANKS = 5
    """int32 global ranks in group-rank order."""
    EXCEPTION = 6
    """JSON: type, message, frames, thread."""


class ExitKind(IntEnum):
    """How the process ended, according to itself."""

    NONE = 0
    CLEAN = 1
    """The interpreter shut down with exit status 0."""
    EXCEPTION = 2
    CODE = 3
    """``sys.exit`` or ``os._exit`` with a status other than 0."""
    HARD_EXIT = 4
    """``os._exit``: no interpreter shutdown; the status is in ``exit_code``."""


class SlotFlag(IntFlag):
    """Flags of a record; the low bits are those of `hangscope.trace.model.Flag`."""

    RETIRED = 1
    P2P = 2
    COALESCED_MEMBER = 4
    COALESCED_BATCH = 8
    ASYNC = 16
    UNOBSERVED = 32
    FAILED = 256
    """The call raised."""
    BLOCKING = 512
    """A send or recv whose caller waits for it at once. Without this and `ASYNC` that is not known
    (older recorders, calls that bypass ``torch.distributed``)."""
    WAITED = 1024
    """The job has begun to wait for this ``isend`` or ``irecv``."""
    LEAVING = 2048
    """Issued during shutdown: in a signal handler, while KeyboardInterrupt or SystemExit ends the
    process, or at its exit."""
    HANDLING = 4096
    """Issued while another exception was being handled: in an ``except`` or ``finally`` clause, or
    at the end of a ``with`` block."""


LEAVING_PHASE = "interpreter exit"
"""The phase of a process whose program has ended: it runs exit handlers or waits for threads."""


class RingFlag(IntFlag):
    """Flags of the whole file."""

    DECLARED = 1
    """``rank`` and ``world_size`` were passed to ``init_process_group`` or returned by it. Without
    this flag they come from the launcher's variables at the start of recording. Older recorders
    only have ``initialized``."""


class Unobservable(IntFlag):
    """Kinds of operations whose completion or existence no record shows."""

    CUDA_GRAPH = 1
    SYMMETRIC_MEMORY = 2
    BLOCKING_WAIT = 4


def header_offset(name: str) -> int:
    """Byte offset of a header field in the file."""
    fields = HEADER.fields
    assert fields is not None
    return int(fields[name][1])


def group_offset(name: str) -> int:
    """Byte offset of a field inside a group entry."""
    fields = GROUP.fields
    assert fields is not None
    return int(fields[name][1])


def align8(size: int) -> int:
    """The next multiple of eight."""
    return (size + 7) & ~7
