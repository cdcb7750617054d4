"""Writes a ring file from inside the training process.

Every method is a handful of stores into mapped memory: no system call, no lock, no allocation that
grows with the job. Where two threads could interfere, what must be atomic is a run of loads and
stores without a call in it (see `hangscope.ring.atomic`). The file's blocks are reserved when it is
created, so a full disk shows at that point and can never become a SIGBUS later.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hangscope.ring import layout
from hangscope.ring.atomic import IN_ORDER, barrier, exclusive
from hangscope.ring.layout import GROUP, HEADER, SLOT, RingFlag, ValueKind, header_offset
from hangscope.ring.run_directory import opened

_U4 = struct.Struct("=I")
_I4 = struct.Struct("=i")
LAST_RECORD_CELL = header_offset("last_record_id") // 8
"""Cell of the newest record id: a record is published by storing its id here."""
_VALUES_USED = header_offset("values_used") // 8
_VALUES_REFUSED = header_offset("values_refused") // 8
_HEARTBEAT_NS = header_offset("heartbeat_ns") // 8
_HEARTBEAT_COUNT = header_offset("heartbeat_count") // 8
_SAMPLE_GENERATION = header_offset("sample_generation") // 8
_SAMPLE_NS = header_offset("sample_ns") // 8
_PHASES = header_offset("phases")
_SLOT_COMPLETED = layout.SLOT_COMPLETED_OFFSET // 8
_DESTROYED = layout.group_offset("destroyed_ns") // 8
_SLOT_STATE = layout.SLOT_STATE_OFFSET // 8
_U8 = struct.Struct("=Q")
_SLOT_COMMIT = layout.SLOT.fields["commit"][1]  # type: ignore[index]
RESERVED_SHARE = 16
"""One part in this many of the value area is reserved for essential values."""


@dataclass(frozen=True, slots=True)
class RingIdentity:
    """Who writes the file; does not change afterwards."""

    run_id: str
    rank: int
    world_size: int
    attempt: int = 0
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    host: str = ""
    boot_id: str = ""
    torch_version: str = ""
    python_version: str = ""
    cwd: str = ""
    pid: int = 0
    parent_pid: int = 0
    start_ticks: int = 0
    pid_namespace: int = 0
    timeout_s: float = 120.0
    heartbeat_interval_s: float = 1.0
    seal: str = ""


class RingWriter:
    """One rank's ring file, mapped for writing.

    Parameters
    ----------
    path:
        The file to create; it must not exist.
    identity:
        Who writes.
    slot_count:
        Records kept; the oldest are overwritten.

    Raises
    ------
    OSError
        If the file cannot be created or its blocks cannot be reserved.
    """

    def __init__(
        self,
        path: Path,
        identity: RingIdentity,
        slot_count: int = 10_000,
        *,
        group_count: int = layout.GROUP_COUNT,
        values_bytes: int = layout.VALUES_BYTES,
    ) -> None:
        self.path = path
        self.slot_count = slot_count
        self.group_count = group_count
        self._groups_at = layout.HEADER_BYTES
        self._slots_at = self._groups_at + group_count * GROUP.itemsize
        self._samples_at = self._slots_at + slot_count * SLOT.itemsize
        self._values_at = self._samples_at + 2 * layout.SAMPLE_BYTES
        self._values_bytes = layout.align8(values_bytes)
        self._common_bytes = self._values_bytes - self._values_bytes // RESERVED_SHARE
        size = self._values_at + self._values_bytes
        self.memory = _make_file(path, size)
        """The mapped file."""
        self.cells = memoryview(self.memory).cast("q")
        """The file as signed eight-byte cells: an assignment is a single store."""
        self._groups_used = 0
        self._values_used = 8  # id 0 means "no value"
        self._interned: dict[tuple[int, bytes], int] = {}
        self._write_header(identity, size)

    def _write_header(self, identity: RingIdentity, size: int) -> None:
        header = np.zeros((), HEADER)
        header["version"] = layout.VERSION
        header["header_bytes"] = layout.HEADER_BYTES
        header["slot_bytes"] = SLOT.itemsize
        header["slot_count"] = self.slot_count
        header["group_bytes"] = GROUP.itemsize
        header["group_count"] = self.group_count
        header["groups_offset"] = self._groups_at
        header["slots_offset"] = self._slots_at
        header["samples_offset"] = self._samples_at
        header["sample_bytes"] = layout.SAMPLE_BYTES
        header["values_offset"] = self._values_at
        header["values_bytes"] = self._values_bytes
        header["file_bytes"] = size
        for name in RingIdentity.__slots__:
            value = getattr(identity, name)
            header[name] = (
                value.encode()[: HEADER[name].itemsize] if isinstance(value, str) else value
            )
        header["created_ns"] = header["heartbeat_ns"] = time.time_ns()
        header["values_used"] = self._values_used
        header["ready"] = 1
        raw = header.tobytes()
        self.memory[8 : len(raw)] = raw[8:]
        barrier()
        self.memory[:8] = layout.MAGIC  # last: a file without it is not yet a ring

    # -- interned values ---------------------------------------------------------------------

    def intern(self, kind: ValueKind, value: bytes, *, essential: bool = True) -> int:
        """The id of a value, which is written when it is new; 0 if the area is full.

        The area's last part is reserved for essential values, which are few and matter most at the
        end: names, groups, exceptions. Stacks and shapes that never repeat cannot use it up.
        """
        key = (kind, value)
        known = self._interned.get(key)
        if known is not None:
            return known
        size = layout.align8(layout.VALUE_HEADER.size + len(value))
        start = self._reserve(size, self._values_bytes if essential else self._common_bytes)
        if start < 0:
            return 0
        at = self._values_at + start
        layout.VALUE_HEADER.pack_into(self.memory, at, len(value), kind)
        at += layout.VALUE_HEADER.size
        self.memory[at : at + len(value)] = value
        barrier()
        self.cells[_VALUES_USED] = self._values_used
        identifier = start // 8
        self._interned[key] = identifier
        return identifier

    @exclusive
    def _reserve(self, size: int, limit: int) -> int:
        """Reserve ``size`` bytes of the value area; returns their offset, -1 if it is full."""
        # No call in these lines: two threads must not get the same offset.
        start = self._values_used
        if start + size > limit:
            self.cells[_VALUES_REFUSED] += 1
            return -1
        self._values_used = start + size
        return start

    def text(self, value: str) -> int:
        """Intern a text."""
        return self.intern(ValueKind.TEXT, value.encode("utf-8", "replace"))

    # -- groups ------------------------------------------------------------------------------

    def set_signature(self, record_id: int, signature: int) -> None:
        """Complete a record's signature, unless its slot already belongs to a newer one."""
        at = self.slot_at(record_id)
        if signature and self.cells[at // 8] == record_id:
            _U4.pack_into(self.memory, at + layout.SLOT_SIGNATURE_OFFSET, signature)

    def forget_record(self, record_id: int) -> None:
        """Clear a record's group, because its operation was never issued."""
        at = self.slot_at(record_id)
        if self.cells[at // 8] == record_id:
            _U4.pack_into(self.memory, at + layout.SLOT_GROUP_OFFSET, 0)

    def add_group(
        self,
        name: str,
        desc: str,
        ranks: Sequence[int],
        backend: str,
        epoch: int,
        group_rank: int,
        *,
        observable: bool,
    ) -> int:
        """Add a process group; returns its index + 1, or 0 if the table is full.

        ``ranks``: the members in group-rank order; -1 for one not known to be a rank of this job.
        """
        name_id, desc_id, backend_id = self.text(name), self.text(desc), self.text(backend)
        ranks_id = self.intern(ValueKind.RANKS, np.asarray(ranks, dtype="<i4").tobytes())
        index = self._next_group()
        if index < 0:
            self.put_u4("groups_refused", 1)
            return 0
        entry = np.zeros((), GROUP)
        entry["name"], entry["desc"], entry["ranks"] = name_id, desc_id, ranks_id
        entry["backend"], entry["epoch"] = backend_id, epoch
        entry["size"], entry["group_rank"] = len(ranks), group_rank
        entry["created_ns"] = time.time_ns()
        entry["completed"] = entry["started"] = 0 if observable else -1
        raw = entry.tobytes()
        at = self._groups_at + index * GROUP.itemsize
        self.memory[at + 4 : at + GROUP.itemsize] = raw[4:]
        barrier()
        _U4.pack_into(self.memory, at, 1)
        self.put_u4("groups_used", self._groups_used)
        return index + 1

    @exclusive
    def _next_group(self) -> int:
        """Reserve an entry of the group table for the caller; returns its index, -1 if full."""
        # No call in these lines, as in `_reserve`.
        index = self._groups_used
        if index >= self.group_count:
            return -1
        self._groups_used = index + 1
        return index

    def group_cells(self, group: int) -> int:
        """Index of the first eight-byte cell of a group's entry (``group`` as from `add_group`)."""
        return (self._groups_at + (group - 1) * GROUP.itemsize) // 8

    def note_destroyed(self, group: int) -> None:
        """This process destroys a group (``group`` as from `add_group`)."""
        self.cells[self.group_cells(group) + _DESTROYED] = time.time_ns()

    # -- records -----------------------------------------------------------------------------

    def slot_at(self, record_id: int) -> int:
        """Byte offset of a record's slot."""
        return self._slots_at + ((record_id - 1) % self.slot_count) * 128

    def set_record(self, record_id: int, *, state: int, flags: int, completed_ns: int) -> None:
        """Update a record's state, unless its slot already belongs to a newer one."""
        at = self.slot_at(record_id)
        cell = at // 8
        cells = self.cells
        # No call in these lines: the slot must not be taken by another record meanwhile.
        if cells[cell] != record_id:
            return
        cells[cell + _SLOT_COMPLETED] = completed_ns
        if not IN_ORDER:
            barrier()
            if cells[cell] != record_id:
                return
        cells[cell + _SLOT_STATE] = state | flags << 32

    # -- process -----------------------------------------------------------------------------

    def beat(self) -> None:
        """Store a heartbeat: the watcher thread is alive and got the GIL."""
        self.cells[_HEARTBEAT_NS] = time.time_ns()
        self.cells[_HEARTBEAT_COUNT] += 1

    def put_u4(self, field: str, value: int) -> None:
        """Store a four-byte header field."""
        _U4.pack_into(self.memory, header_offset(field), value & 0xFFFFFFFF)

    def put_i8(self, field: str, value: int) -> None:
        """Store an eight-byte header field."""
        self.cells[header_offset(field) // 8] = value

    def put_world(self, rank: int, world_size: int) -> None:
        """Set rank and world size after the job itself has declared them."""
        places = [("rank", rank), ("world_size", world_size)]
        (known,) = _I4.unpack_from(self.memory, header_offset("world_size"))
        # Stored in an order that keeps the rank below the world size at every moment.
        for name, value in reversed(places) if world_size > known else places:
            _I4.pack_into(self.memory, header_offset(name), value)
        self.put_i8("flags", self.cells[header_offset("flags") // 8] | int(RingFlag.DECLARED))

    @property
    def rank(self) -> int:
        """This process's rank as known so far."""
        return int(_I4.unpack_from(self.memory, header_offset("rank"))[0])

    def set_phases(self, phases: Sequence[tuple[int, int, int]]) -> None:
        """Store the open phases, outermost first, as (name id, detail id, since_ns)."""
        kept = phases[-layout.PHASE_DEPTH :]
        for index, (name, detail, since_ns) in enumerate(kept):
            struct.pack_into("=IIq", self.memory, _PHASES + index * 16, name, detail, since_ns)
        self.put_u4("phase_count", len(kept))

    def write_sample(self, text: bytes) -> None:
        """Publish the newest stacks of all threads (two buffers; odd or even generation)."""
        generation = self.cells[_SAMPLE_GENERATION] + 1
        at = self._samples_at + (generation & 1) * layout.SAMPLE_BYTES
        body = text[: layout.SAMPLE_BYTES - 4]
        self.memory[at + 4 : at + 4 + len(body)] = body
        _U4.pack_into(self.memory, at, len(body))
        barrier()
        self.cells[_SAMPLE_GENERATION] = generation
        self.cells[_SAMPLE_NS] = time.time_ns()

    def record_exit(self, kind: layout.ExitKind, code: int) -> None:
        """Store how the process is ending; only the first call counts."""
        if self.cells[header_offset("exit_ns") // 8]:
            return
        _U4.pack_into(self.memory, header_offset("exit_kind"), kind)
        _I4.pack_into(self.memory, header_offset("exit_code"), code)
        barrier()
        self.put_i8("exit_ns", time.time_ns())

    def record_exception(self, value: bytes, *, replace: bool = False) -> None:
        """Store an uncaught exception (JSON); the first one stays unless ``replace``."""
        if self.cells[header_offset("exception_ns") // 8] and not replace:
            return
        self.put_u4("exception", self.intern(ValueKind.EXCEPTION, value))
        barrier()
        self.put_i8("exception_ns", time.time_ns())

    def record_handled(self, value: bytes | None) -> None:
        """Store the exception (JSON) that is being handled from now on; None if it is not known."""
        # In between, readers see no exception rather than the new one with the old time.
        self.put_u4("handled", 0)
        self.put_i8("handled_ns", time.time_ns())
        if value is not None:
            identifier = self.intern(ValueKind.EXCEPTION, value, essential=False)
            self.put_u4("handled", identifier)


def pack_slot_in_steps(memory: mmap.mmap, at: int, *fields: int) -> None:
    """Store a slot's fields (`SLOT`, in order) so that no reader takes an unfinished one for whole,
    whatever the processor makes of the order of stores."""
    _U8.pack_into(memory, at + _SLOT_COMMIT, 0)
    barrier()
    layout.SLOT_FORMAT.pack_into(memory, at, *fields[:-1], 0)
    barrier()
    _U8.pack_into(memory, at + _SLOT_COMMIT, fields[-1])
    barrier()


pack_slot = layout.SLOT_FORMAT.pack_into if IN_ORDER else pack_slot_in_steps
"""Stores a slot: memory, byte offset, fields. What is stored later appears later."""


def _make_file(path: Path, size: int) -> mmap.mmap:
    """Create and map the file with all its blocks reserved; leaves nothing behind on failure."""
    with opened(path.parent) as directory:
        try:
            descriptor = directory.new_file(path.name)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        try:
            os.posix_fallocate(descriptor, 0, size)
            return mmap.mmap(descriptor, size)
        except OSError as error:
            directory.remove(path.name)
            raise OSError(error.errno, error.strerror, str(path)) from None
        finally:
            os.close(descriptor)
