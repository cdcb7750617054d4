"""Rewrites a ring without its unused space, as a valid ring for the same reader.

A recorder reserves space for ten thousand records, thousands of groups and megabytes of stacks; a
fixture keeps only the records, groups and values in use. The process identity is removed on
purpose: what was observed of the process is in the fixture's journal, and a later process with the
same pid must not be taken for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.replay.redact import Redactor
from hangscope.ring import layout
from hangscope.ring.layout import SLOT, ValueKind
from hangscope.ring.process_identity import machine_id
from hangscope.ring.reader import RingReader, decode_text


class _Values:
    """A new area of interned values, copied on demand from the old one."""

    def __init__(self, reader: RingReader, redactor: Redactor | None) -> None:
        self._reader = reader
        self._redactor = redactor
        self.area = bytearray(8)  # id 0 means "no value"
        self._known: dict[tuple[int, bytes], int] = {}
        self._moved: dict[tuple[int, int], int] = {}

    def move(self, identifier: int, kind: ValueKind) -> int:
        """The new id of an old value; 0 if the old id is invalid."""
        key = (identifier, int(kind))
        if key not in self._moved:
            raw = self._reader.value(identifier, kind)
            self._moved[key] = 0 if raw is None else self._put(kind, self._changed(kind, raw))
        return self._moved[key]

    def _put(self, kind: ValueKind, raw: bytes) -> int:
        known = self._known.get((int(kind), raw))
        if known is not None:
            return known
        start = len(self.area)
        self.area += layout.VALUE_HEADER.pack(len(raw), kind) + raw
        self.area += bytes(layout.align8(len(self.area)) - len(self.area))
        self._known[(int(kind), raw)] = start // 8
        return start // 8

    def _changed(self, kind: ValueKind, raw: bytes) -> bytes:
        if kind == ValueKind.STACK:
            frames = np.frombuffer(raw[: len(raw) // 4 * 4], "<u4").tolist()
            moved = [self.move(frame, ValueKind.FRAME) for frame in frames]
            return np.asarray(moved, "<u4").tobytes()
        if self._redactor is None:
            return raw
        if kind == ValueKind.FRAME:
            name, _, rest = raw.decode("utf-8", "replace").partition("\x00")
            filename, _, line = rest.partition("\x00")
            return f"{name}\x00{self._redactor.path(filename)}\x00{line}".encode()
        if kind in (ValueKind.EXCEPTION, ValueKind.SIGNATURE):
            try:
                fields = json.loads(raw)
            except (ValueError, RecursionError):
                return b"{}"
            return json.dumps(self._redactor.value(fields)).encode()
        if kind == ValueKind.RANKS:
            return raw
        return self._redactor.prose(raw.decode("utf-8", "replace")).encode()


def compact_ring(
    source: str | os.PathLike[str],
    target: Path,
    redactor: Redactor | None = None,
    *,
    newest: int | None = None,
    on_its_way_out: bool = False,
) -> None:
    """Write the ring at ``source`` to ``target`` without its unused space.

    Parameters
    ----------
    source:
        A ring; its writer may be alive. It is not changed.
    target:
        File to write.
    redactor:
        Replaces paths and hosts in stacks, exceptions, phases and the header.
    on_its_way_out:
        The process had recorded its exit but was still alive when observed, which counts as no
        exit. As that could not be seen later, the exit is left out.
    newest:
        Keep at most this many of the newest records; by default all.

    Raises
    ------
    hangscope.ring.reader.RingError
        If ``source`` is not a usable ring.
    OSError
        If a file cannot be read or written.
    """
    reader = RingReader(source)
    try:
        target.write_bytes(_compact(reader, redactor, newest, on_its_way_out))
    finally:
        reader.close()


def _compact(
    reader: RingReader, redactor: Redactor | None, newest: int | None, on_its_way_out: bool
) -> bytes:
    header = _header(reader)
    if on_its_way_out:
        header["exit_kind"] = header["exit_code"] = header["exit_ns"] = 0
    values = _Values(reader, redactor)
    groups = reader.groups().copy()
    for name in ("name", "desc", "backend"):
        groups[name] = [values.move(int(i), ValueKind.TEXT) for i in groups[name]]
    groups["ranks"] = [values.move(int(i), ValueKind.RANKS) for i in groups["ranks"]]
    slots = _slots(reader, int(header["slot_count"]), newest)
    slots["signature"] = _column(values, slots["signature"], ValueKind.SIGNATURE)
    slots["stack"] = _column(values, slots["stack"], ValueKind.STACK)
    for name in ("disabled", "backend", "rendezvous", "device"):
        header[name] = values.move(int(header[name]), ValueKind.TEXT)
    for name in ("exception", "handled"):
        header[name] = values.move(int(header[name]), ValueKind.EXCEPTION)
    header["left_stack"] = values.move(int(header["left_stack"]), ValueKind.STACK)
    for index in range(layout.PHASE_DEPTH):
        for name in ("name", "detail"):
            phase = header["phases"][index]
            phase[name] = values.move(int(phase[name]), ValueKind.TEXT)
    samples, sample_bytes = _samples(reader, int(header["sample_generation"]), redactor)
    if redactor is not None:
        header["run_id"] = redactor.prose(decode_text(header["run_id"])).encode()
        header["host"] = redactor.host(decode_text(header["host"])).encode()
        header["cwd"] = redactor.path(decode_text(header["cwd"])).encode()
        header["seal"] = b""
    boot = decode_text(header["boot_id"])
    header["boot_id"] = machine_id(boot, int(header["pid_namespace"])).encode()
    header["pid_namespace"] = 0
    header["fault_signal"] = 0
    header["slot_count"] = len(slots)
    header["group_count"] = header["groups_used"] = len(groups)
    header["groups_offset"] = layout.HEADER_BYTES
    header["slots_offset"] = layout.HEADER_BYTES + groups.nbytes
    header["samples_offset"] = int(header["slots_offset"]) + slots.nbytes
    header["sample_bytes"] = sample_bytes
    header["values_offset"] = int(header["samples_offset"]) + len(samples)
    header["values_bytes"] = header["values_used"] = len(values.area)
    header["file_bytes"] = int(header["values_offset"]) + len(values.area)
    return b"".join(
        (header.tobytes(), groups.tobytes(), slots.tobytes(), samples, bytes(values.area))
    )


def _header(reader: RingReader) -> Any:
    """A copy of the header, field by field: copying it as a whole would also copy stray memory
    between the fields, with paths in it."""
    header = np.zeros((), layout.HEADER)
    old = reader.header()
    header["phases"] = np.frombuffer(old.phases, layout.PHASE)
    for name in old._fields[:-1]:
        header[name] = getattr(old, name)
    return header


def _column(
    values: _Values, ids: npt.NDArray[np.uint32], kind: ValueKind
) -> npt.NDArray[np.uint32]:
    unique, where = np.unique(ids, return_inverse=True)
    return np.array([values.move(int(i), kind) for i in unique], np.uint32)[where]


def _slots(reader: RingReader, slot_count: int, limit: int | None) -> npt.NDArray[np.void]:
    """The slots at the positions where the reader expects them, in the smallest possible ring.

    Torn records become gaps, which the reader counts again.
    """
    kept, _ = reader.slots()
    if limit is not None:
        kept, slot_count = kept[-limit:], min(slot_count, limit)
    newest = int(kept["record_id"][-1]) if len(kept) else 0
    count = min(slot_count, newest + 1)
    slots = np.zeros(count, SLOT)
    slots[(kept["record_id"].astype(np.int64) - 1) % count] = kept
    return slots


def _samples(reader: RingReader, generation: int, redactor: Redactor | None) -> tuple[bytes, int]:
    """Both sample buffers, and the size of one; only the newest sample is kept."""
    sample = reader.sample()
    text = sample.text if sample is not None else ""
    if redactor is not None:
        text = "\n".join(_sample_line(line, redactor) for line in text.split("\n"))
    body = text.encode()
    buffer = len(body).to_bytes(4, "little") + body
    buffer += bytes(layout.align8(len(buffer)) - len(buffer))
    empty = bytes(len(buffer))
    pair = (empty, buffer) if generation & 1 else (buffer, empty)
    return b"".join(pair), len(buffer)


def _sample_line(line: str, redactor: Redactor) -> str:
    if not line.startswith("F "):
        return redactor.prose(line)
    number, _, rest = line.partition("\x00")
    function, _, filename = rest.partition("\x00")
    return f"{number}\x00{function}\x00{redactor.path(filename)}"
