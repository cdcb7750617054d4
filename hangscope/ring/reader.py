"""Reads a ring file, without any cooperation of the writer.

The file may belong to a live process or to one that died in the middle of a store, or it may be no
ring at all. Sizes and offsets are checked against the file before anything is read; a half-written
slot is dropped and counted; an interned value that points outside its area reads as absent.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.ring import layout
from hangscope.ring.header import RingHeader, decode_header
from hangscope.ring.layout import GROUP, HEADER, SLOT, ValueKind

_NUMBERS = {
    name: (layout.header_offset(name), HEADER[name].itemsize)
    for name in (
        "last_record_id", "groups_used", "values_used", "sample_generation", "sample_ns",
        "rank", "world_size", "flags", "initialized", "finalized",
    )
}  # fmt: skip
_READY = layout.header_offset("ready")
_RANK = layout.header_offset("rank")
_MOST_TIMES = 64
"""Largest plausible size of a table, as a multiple of this version's."""
_MOST_RECORDS = 1 << 48
"""Largest plausible record id: a million records a second for nine years."""

_PLACE = struct.Struct("<i4xi")
"""Rank and world size."""
assert layout.header_offset("world_size") == _RANK + 8


class RingError(Exception):
    """The file is not a usable ring; the message says why in one clause."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The newest stacks taken by a rank's own watcher: raw text and time."""

    text: str
    at_ns: int


class RingReader:
    """One ring file, mapped read-only, so that repeated looks copy only what is asked for.

    Raises
    ------
    RingError
        If the file is no ring, of another version, truncated or inconsistent.
    OSError
        If it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        with open(path, "rb") as file:
            check_size(file.fileno())
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._size = len(self._map)
        self._memory = memoryview(self._map)
        self._check()

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.name)

    @property
    def address(self) -> int:
        """Where the file is mapped in this process."""
        return int(np.frombuffer(self._memory, np.uint8).ctypes.data)

    def _read(self, at: int, length: int) -> bytes:
        """A copy of a part of the file; the part must lie inside it."""
        return self._map[at : at + length]

    def _read_into(self, at: int, target: memoryview) -> None:
        target[:] = self._memory[at : at + len(target)]

    def _check(self) -> None:
        head = self._read(0, layout.HEADER_BYTES)
        ready = any(head[_READY : _READY + 4])
        self._start = head[: layout.FIXED_START.size]
        (
            self._slot_count, self._slots_at, self._group_count, self._groups_at, self._samples_at,
            self._sample_bytes, self._values_at, self._values_bytes,
        ) = _checked(self._start, ready, self._size)  # fmt: skip
        rank, world_size = _PLACE.unpack_from(head, _RANK)
        if not _is_possible(rank, world_size):
            raise RingError(f"damaged: no job has a rank {rank} of {world_size}")
        if self._number("last_record_id") > _MOST_RECORDS:
            raise RingError("damaged: it counts more records than any job issues")

    def is_sound(self) -> bool:
        """Whether the file is still the ring that was opened.

        A file that is overwritten, by `cp` say, changes under the map, and touching a part that was
        truncated would kill this process with SIGBUS.
        """
        if self._map.size() < self._size:
            return False
        return (
            self._read(0, layout.FIXED_START.size) == self._start
            and _is_possible(*_PLACE.unpack(self._read(_RANK, _PLACE.size)))
            and self._number("last_record_id") <= _MOST_RECORDS
        )

    def close(self) -> None:
        """Unmap the file; arrays handed out before stay valid only if they were copied."""
        try:
            self._memory.release()
            self._map.close()
        except BufferError:  # an array still points into the map, which is freed with the array
            pass

    def header(self) -> RingHeader:
        """The current header."""
        return decode_header(self._read(0, layout.HEADER_BYTES))

    def place(self) -> tuple[int, int, bool]:
        """Current rank, world size, and whether the job itself has declared them."""
        declared = (
            self._number("flags") & layout.RingFlag.DECLARED
            or self._number("initialized")
            or self._number("finalized")
        )
        return self._number("rank"), self._number("world_size"), bool(declared)

    def _number(self, field: str) -> int:
        """The current value of one unsigned header field."""
        at, length = _NUMBERS[field]
        return int.from_bytes(self._read(at, length), "little")

    def groups(self, used: int | None = None) -> npt.NDArray[np.void]:
        """The complete entries of the group table, read-only: shape (groups,), dtype `GROUP`.

        ``used``: their number, if the caller has just read it.
        """
        used = min(self._number("groups_used") if used is None else used, self._group_count)
        table: npt.NDArray[np.void] = np.frombuffer(
            self._read(self._groups_at, used * GROUP.itemsize), GROUP
        )
        complete: npt.NDArray[np.bool_] = table["commit"] == 1
        if np.count_nonzero(complete) < len(table):
            table = table[complete]
        return table

    # Raw parts, for callers that look at a thousand rings at once and check all of them together.

    @property
    def slot_count(self) -> int:
        """Number of records the ring holds before the oldest is overwritten."""
        return self._slot_count

    def header_bytes(self) -> memoryview:
        """The current header as `layout.HEADER_BYTES` bytes, not copied."""
        return self._memory[: layout.HEADER_BYTES]

    def group_bytes(self, count: int) -> memoryview:
        """The first entries of the group table, complete or not, not copied."""
        count = min(count, self._group_count)
        return self._memory[self._groups_at : self._groups_at + count * GROUP.itemsize]

    def slot_bytes(self, first: int, last: int) -> list[memoryview]:
        """The slots of records ``first`` to ``last`` (at most `slot_count` of them) in order, with
        whatever they hold now, not copied."""
        start, length = (first - 1) % self._slot_count, last + 1 - first
        at, size = self._slots_at, SLOT.itemsize
        end = start + length
        if end <= self._slot_count:
            return [self._memory[at + start * size : at + end * size]]
        whole, rest = self._slot_count, end - self._slot_count
        return [
            self._memory[at + start * size : at + whole * size],
            self._memory[at : at + rest * size],
        ]

    def slots(self, since: int = 0) -> tuple[npt.NDArray[np.void], int]:
        """Valid records newer than record id ``since``, oldest first, and how many are lost.

        Returns a copy of shape (records,), dtype `SLOT`. A record is lost if it was published and
        is torn or missing, unless a newer one has overwritten it in the meantime.
        """
        last = self._number("last_record_id")
        count = self._slot_count
        # The record after the last published one may be complete even if its writer died before
        # publishing it. It is in the slot of the oldest record.
        first = max(since, last - count, 0) + 1
        start, length = (first - 1) % count, min(last + 2 - first, count)
        raw = self._room(max(length, 0))
        before_end = min(length, count - start)
        self._copy_slots(start, raw[:before_end])
        self._copy_slots(0, raw[before_end:])
        ids, commits = raw["record_id"], raw["commit"]
        expected = np.arange(first, first + len(raw), dtype="<u8").tobytes()
        if ids.tobytes() == expected == commits.tobytes():
            return raw, 0
        if length == count and ids[0] == last + 1:  # the oldest has been overwritten meanwhile
            raw, first = np.concatenate((raw[1:], raw[:1])), first + 1
        ids, commits = raw["record_id"], raw["commit"]
        if len(raw) and ids[-1] == commits[-1] != first + len(raw) - 1:
            raw, ids, commits = raw[:-1], ids[:-1], commits[:-1]  # not written yet
            if ids.tobytes() == expected[:-8] == commits.tobytes():
                return raw, 0
        whole = ids == commits
        overtaken = np.count_nonzero(whole & (ids > last + 1))
        room = len(raw)
        raw = raw[whole & (ids >= first) & (ids <= last + 1)]
        lost = room - len(raw) - int(overtaken)
        if len(raw) > 1 and (raw["record_id"][1:] <= raw["record_id"][:-1]).any():
            raw = raw[np.argsort(raw["record_id"], kind="stable")]
        return raw, lost

    def _room(self, count: int) -> npt.NDArray[np.void]:
        """Memory for a copy of ``count`` slots."""
        return np.empty(count, SLOT)

    def _copy_slots(self, start: int, target: npt.NDArray[np.void]) -> None:
        if len(target):
            self._read_into(self._slots_at + start * SLOT.itemsize, target.view(np.uint8).data)

    def values(self, used: int | None = None) -> bytes:
        """A copy of the used part of the value area, for decoding many values at once.

        ``used``: its size in bytes, if the caller has just read it.
        """
        used = self._number("values_used") if used is None else used
        return self._read(self._values_at, min(used, self._values_bytes))

    def value(self, identifier: int, kind: ValueKind | None = None) -> bytes | None:
        """An interned value, or None if the id is invalid or of another kind."""
        if identifier <= 0:
            return None
        at = identifier * 8
        if at + layout.VALUE_HEADER.size > self._values_bytes:
            return None
        start = self._values_at + at
        length, found = layout.VALUE_HEADER.unpack(self._read(start, layout.VALUE_HEADER.size))
        if at + layout.VALUE_HEADER.size + length > self._values_bytes:
            return None
        if kind is not None and found != kind:
            return None
        start += layout.VALUE_HEADER.size
        return self._read(start, length)

    def text(self, identifier: int) -> str:
        """An interned text; empty where absent."""
        return (self.value(int(identifier), ValueKind.TEXT) or b"").decode("utf-8", "replace")

    def sample(self) -> Sample | None:
        """The newest thread stacks, or None if none were taken yet."""
        for _ in range(3):  # the writer may overtake us, which the generation shows
            generation = self._number("sample_generation")
            if generation <= 0:
                return None
            at = self._samples_at + (generation & 1) * self._sample_bytes
            length = int.from_bytes(self._read(at, 4), "little")
            if length > self._sample_bytes - 4:
                return None
            body = self._read(at + 4, length)
            at_ns = self._number("sample_ns")
            if self._number("sample_generation") - generation < 1:
                return Sample(body.decode("utf-8", "replace"), at_ns)
        return None


@functools.lru_cache(64)
def _checked(start: bytes, ready: bool, size: int) -> tuple[int, ...]:
    """The checked values that a `RingReader` needs from a header's fixed start.

    Rings of one job have the same start.

    Parameters
    ----------
    start:
        The bytes of `hangscope.ring.layout.FIXED_START`.
    ready:
        Whether its writer has marked the header as complete.
    size:
        Size of the file in bytes.

    Raises
    ------
    RingError
        If it is not a header of this version, or its areas do not fit into the file.
    """
    (
        magic, version, header_bytes, slot_bytes, slot_count, group_bytes, group_count,
        groups_at, slots_at, samples_at, sample_bytes, values_at, values_bytes,
    ) = layout.FIXED_START.unpack(start)  # fmt: skip
    if not magic.startswith(layout.PREFIX):
        raise RingError("not a HangScope ring (no magic number)")
    if magic != layout.MAGIC or version != layout.VERSION:
        raise RingError(f"ring version {version}; this HangScope reads {layout.VERSION}")
    if not ready:
        raise RingError("the writer died before the header was complete")
    if (slot_bytes, group_bytes, header_bytes) != (
        SLOT.itemsize, GROUP.itemsize, layout.HEADER_BYTES,
    ):  # fmt: skip
        raise RingError("entry sizes are not those of this version")
    if (
        slot_count > layout.MAX_SLOTS
        or group_count > _MOST_TIMES * layout.GROUP_COUNT
        or sample_bytes > _MOST_TIMES * layout.SAMPLE_BYTES
        or values_bytes > _MOST_TIMES * layout.VALUES_BYTES
    ):
        raise RingError("damaged: its tables are larger than any recorder makes them")
    for name, at, length in (
        ("groups", groups_at, group_count * GROUP.itemsize),
        ("slots", slots_at, slot_count * SLOT.itemsize),
        ("samples", samples_at, 2 * sample_bytes),
        ("values", values_at, values_bytes),
    ):
        if at < layout.HEADER_BYTES or at % 8 or at + length > size:
            raise RingError(f"truncated: its {name} end outside the file")
    if slot_count < 1:
        raise RingError("it has no slots")
    return (
        slot_count, slots_at, group_count, groups_at, samples_at, sample_bytes, values_at,
        values_bytes,
    )  # fmt: skip


def _is_possible(rank: int, world_size: int) -> bool:
    """Whether rank and world size are plausible together.

    Replicas may count their ranks differently from their world size, but are not far off.
    """
    far = _MOST_TIMES * world_size if world_size > 0 else layout.MAX_RANK + 1
    return 0 <= rank <= layout.MAX_RANK and rank < far


def decode_text(field: Any) -> str:
    """Decode a fixed-width text field of the header."""
    return bytes(field).rstrip(b"\x00").decode("utf-8", "replace")


def check_size(descriptor: int) -> int:
    """The size of an open file in bytes.

    Raises
    ------
    RingError
        If it is too small for a header.
    """
    size = os.fstat(descriptor).st_size
    if size < layout.HEADER_BYTES:
        raise RingError(f"too short for a ring ({size} bytes)")
    return size


def expected_records(head: bytes) -> int:
    """How many records a ring with this header may hold; 0 if the header is cut or invalid."""
    if len(head) < layout.HEADER_BYTES or not head.startswith(layout.PREFIX):
        return 0
    at, length = _NUMBERS["last_record_id"]
    slot_count: int = layout.FIXED_START.unpack_from(head)[4]
    return min(int.from_bytes(head[at : at + length], "little") + 1, slot_count)
