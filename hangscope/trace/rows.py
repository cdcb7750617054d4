"""The tables of a trace: one row per recorded operation, one per rank and group with counters.

Conventions
-----------
* Ranks are global ranks; ``-1`` means "none" or "unknown".
* Times are integer nanoseconds since the epoch; ``0`` means "unknown" or "not yet".
* Sequence numbers are the Flight Recorder's: ``collective_seq`` counts collectives of a group from
  1 (a coalesced batch counts once), ``p2p_seq`` counts point-to-point operations. Every row carries
  both current counters.
* Column indexes (``group``, ``signature``, ``stack``) point into the tuples of a
  `hangscope.trace.model.Trace`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

from hangscope.ring import layout

NONE = -1
"""No rank, no index, no sequence number."""
MAX_RANK = layout.MAX_RANK
"""No job has this many ranks."""


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
    """A send or recv: aligned by pair order, never by collective sequence number."""
    COALESCED_MEMBER = 4
    """One operation inside a coalesced batch; the batch itself has its own row."""
    COALESCED_BATCH = 8
    """The row that stands for a whole coalesced batch (its terminator or its one fused entry)."""
    ASYNC = 16
    """Issued with ``async_op=True``."""
    UNOBSERVED = 32
    """The source cannot see its completion: "not completed" proves nothing."""
    SYNTHETIC = 64
    """Not recorded itself but inferred from a counter or a log line."""
    TIMED_OUT = 128
    """The runtime itself reported that this operation timed out."""
    FAILED = 256
    """The call, or the wait for it, raised."""
    BLOCKING = 512
    """A send or recv whose caller waits for it at once. Neither this nor `ASYNC` is set if the
    source does not say."""
    WAITED = 1024
    """An asynchronous send or recv that the job has begun to wait for."""
    LEAVING = 2048
    """Issued while the rank was exiting: in a signal handler, while the exception that ends the
    process was handled, or at exit. Only HangScope's recorder sets it."""
    HANDLING = 4096
    """Issued while an exception was handled: in an ``except`` or ``finally`` clause, or at the end
    of a ``with`` block. Only HangScope's recorder sets it."""
    FROM_NCCL = 8192
    """Told by NCCL, not recorded where it was issued: a graph's replay, or an operation of a
    communicator that torch does not know. It has no stack."""


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

It has the layout of a ring's slot, so that slots become rows by one copy and overwriting a few
columns. Reading millions of records then costs little more than reading their bytes."""

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
        ("left_ns", np.int64),  # when this rank destroyed the group; 0: it has not, or unknown
    ]
)
"""One row per (rank, group) with counters (``pg_status``, a ring's group table, log lines)."""

Records = npt.NDArray[np.void]
"""An array of `RECORD_DTYPE` or `MEMBER_DTYPE`."""


def flagged(flags: npt.NDArray[np.uint16], wanted: int) -> npt.NDArray[np.bool_]:
    """For each record, whether any of the wanted `Flag` values is set in its ``flags``."""
    found: npt.NDArray[np.bool_] = (flags & int(wanted)) != 0
    return found


RECORD_TIMES = ("created_ns", "started_ns", "completed_ns")


def last_event_ns(records: Records) -> int:
    """When the last thing on record happened; 0 without any record, or where none has a time."""
    return max(int(records[column].max(initial=0)) for column in RECORD_TIMES)
