"""Reads a ring file, without any cooperation of the writer.

The file may belong to a live process or to one that died in the middle of a store, or it may be no
ring at all. Sizes and offsets are checked against the file before anything is read; a half-written
slot is dropped and counted; an interned value that points outside its area reads as absent.

Whoever owns the file can shorten it at any time, which would end a process that has it mapped. So
it is never mapped but read, which also costs less: touching a page for the first time is a fault.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hangscope.ring import layout, portable
from hangscope.ring.checks import (
    MOST_RECORDS,
    RingError,
    checked_size,
    checked_start,
    is_possible_place,
)
from hangscope.ring.header import RingHeader, decode_header
from hangscope.ring.layout import GROUP, HEADER, SLOT, ValueKind

_NUMBERS = {
    name: (layout.header_offset(name), HEADER[name].itemsize)
    for name in (
        "last_record_id", "groups_used", "values_used", "sample_generation", "sample_ns",
        "rank", "world_size", "flags", "initialized", "finalized",
    )
}  # fmt: skip
_NO_RECORD = (1 << 64) - 1
_READY = layout.header_offset("ready")
_RANK = layout.header_offset("rank")
_PLACE = struct.Struct("<i4xi")
"""Rank and world size."""
assert layout.header_offset("world_size") == _RANK + 8


@dataclass(frozen=True, slots=True)
class Sample:
    """The newest stacks taken by a rank's own watcher: raw text and time."""

    text: str
    at_ns: int


Room = Callable[[int], npt.NDArray[np.void]]


class RingReader:
    """One open ring file; each look reads only what is asked for.

    Parameters
    ----------
    path:
        The file.
    room:
        Allocates memory for a number of slots, into which they are read; fresh memory by default.
    descriptor:
        Of the file, if it is open already; it belongs to the reader from now on.

    Raises
    ------
    RingError
        If the file is no ring, of another version, truncated or inconsistent; also later, by every
        method that reads, if the file has become shorter.
    OSError
        If it cannot be opened or read.
    """

    def __init__(
        self, path: str | os.PathLike[str], room: Room | None = None, descriptor: int = -1
    ) -> None:
        self.name = os.fspath(path)
        self._given_room = room
        self._map: mmap.mmap | None = None
        self._is_shorter, self._descriptor = False, descriptor
        if descriptor < 0:  # a FIFO must not block here
            self._descriptor = os.open(path, portable.READ_AT_ONCE)
        try:
            self._size = checked_size(self._descriptor)
            self._check()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.name)

    @property
    def address(self) -> int:
        """Where the file is mapped in this process; nothing there is ever touched."""
        if self._map is None:
            self._map = mmap.mmap(self._descriptor, self._size, access=mmap.ACCESS_READ)
        return int(np.frombuffer(self._map, np.uint8).ctypes.data)

    def _read(self, at: int, length: int) -> bytes:
        """A copy of a part of the file; the part must lie inside it."""
        found = portable.read_at(self._descriptor, length, at)
        if len(found) < length:
            self._became_shorter()
        return found

    def _read_into(self, at: int, target: memoryview) -> None:
        if portable.read_into(self._descriptor, target, at) < len(target):
            self._became_shorter()

    def _became_shorter(self) -> NoReturn:
        self._is_shorter = True
        raise RingError("it became shorter while it was read")

    def _check(self) -> None:
        self.head = head = self._read(0, layout.HEADER_BYTES)
        """The header as of the last `is_sound`: `layout.HEADER_BYTES` bytes."""
        ready = any(head[_READY : _READY + 4])
        self._start = head[: layout.FIXED_START.size]
        (
            self._slot_count, self._slots_at, self._group_count, self._groups_at, self._samples_at,
            self._sample_bytes, self._values_at, self._values_bytes,
        ) = checked_start(self._start, ready, self._size)  # fmt: skip
        rank, world_size = _PLACE.unpack_from(head, _RANK)
        if not is_possible_place(rank, world_size):
            raise RingError(f"damaged: no job has a rank {rank} of {world_size}")
        if self._number("last_record_id") > MOST_RECORDS:
            raise RingError("damaged: it counts more records than any job issues")

    def is_sound(self) -> bool:
        """Read the header again. Returns whether the file is still the ring that was opened.

        It may have been shortened, or overwritten, by `cp` say.
        """
        try:
            if self._is_shorter or os.fstat(self._descriptor).st_size < self._size:
                return False
            self.head = head = self._read(0, layout.HEADER_BYTES)
        except (OSError, RingError):
            return False
        at, length = _NUMBERS["last_record_id"]
        return (
            head.startswith(self._start)
            and is_possible_place(*_PLACE.unpack_from(head, _RANK))
            and int.from_bytes(head[at : at + length], "little") <= MOST_RECORDS
        )

    def close(self) -> None:
        """Close the file; what was read stays valid."""
        self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    @property
    def owner(self) -> int:
        """The user to whom the file belongs."""
        return os.fstat(self._descriptor).st_uid

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

    # Raw parts, for callers that compare or check them themselves.

    @property
    def slot_count(self) -> int:
        """Number of records the ring holds before the oldest is overwritten."""
        return self._slot_count

    def group_bytes(self, count: int) -> bytes:
        """The first entries of the group table, complete or not."""
        return self._read(self._groups_at, min(count, self._group_count) * GROUP.itemsize)

    def slot_bytes(self, first: int, last: int) -> list[bytes]:
        """The slots of records ``first`` to ``last`` (at most `slot_count` of them) in order, with
        whatever they hold now."""
        start, length = (first - 1) % self._slot_count, last + 1 - first
        at, size = self._slots_at, SLOT.itemsize
        end = start + length
        if end <= self._slot_count:
            return [self._read(at + start * size, length * size)]
        whole, rest = self._slot_count - start, end - self._slot_count
        return [self._read(at + start * size, whole * size), self._read(at, rest * size)]

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
        self._void_mixtures(raw, last)
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

    def overwritten(self) -> int:
        """The newest record whose slot the writer may be giving to another one by now.

        It may still be whole. Older ones are gone, and a copy of theirs that was made while the
        writer went on may be a mixture whose ids agree, as processors may reorder loads and stores.
        """
        return self._number("last_record_id") + 1 - self._slot_count

    def _void_mixtures(self, raw: npt.NDArray[np.void], last: int) -> None:
        """Give slots that may have been changing while they were copied an impossible record id.

        ``last``: the last published record when copying began. What was published before is whole
        until it is overwritten.
        """
        ids, commits = raw["record_id"], raw["commit"]
        edge = self.overwritten()
        gone = ids < max(edge, 0)
        for at in {0, len(raw) - 1} if len(raw) else set():
            record = int(ids[at])
            if record in (edge, last + 1) and record == commits[at]:  # just being written?
                (again,) = self.slot_bytes(record, record)
                gone[at] = again != raw[at].tobytes()
        ids[gone] = commits[gone] = _NO_RECORD

    def _room(self, count: int) -> npt.NDArray[np.void]:
        """Memory for a copy of ``count`` slots."""
        return self._given_room(count) if self._given_room else np.empty(count, SLOT)

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


def decode_text(field: Any) -> str:
    """Decode a fixed-width text field of the header."""
    return bytes(field).rstrip(b"\x00").decode("utf-8", "replace")


def expected_records(head: bytes) -> int:
    """How many records a ring with this header may hold; 0 if the header is cut or invalid."""
    if len(head) < layout.HEADER_BYTES or not head.startswith(layout.PREFIX):
        return 0
    at, length = _NUMBERS["last_record_id"]
    slot_count: int = layout.FIXED_START.unpack_from(head)[4]
    return min(int.from_bytes(head[at : at + length], "little") + 1, slot_count)
