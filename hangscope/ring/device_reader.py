"""Reads a device ring: what NCCL's profiler plugin noted about one rank's operations.

The file is read, not mapped: one that somebody truncates meanwhile ends in an error, not in a
SIGBUS.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hangscope.ring import device_layout as layout
from hangscope.ring import portable
from hangscope.ring.checks import RingError
from hangscope.ring.device_layout import COMMUNICATOR, LINK, OPERATION

Table = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class DeviceRing:
    """What a plugin has noted, at one moment.

    ``communicators`` has the shape (communicators,) and dtype `COMMUNICATOR`, in the order of their
    creation; ``operations`` the shape (operations,) and dtype `OPERATION`, oldest first; ``links``
    the shape (links,) and dtype `LINK`.
    """

    pid: int
    interface: int
    """The version of NCCL's profiler interface."""
    created_ns: int
    communicators: Table
    operations: Table
    links: Table


def read_device_ring(path: str | os.PathLike[str]) -> DeviceRing:
    """Read a device ring; its writer may be alive, hung or long dead.

    Raises
    ------
    RingError
        If the file is none, of another version, truncated or inconsistent.
    OSError
        If it cannot be opened or read.
    """
    descriptor = os.open(path, portable.READ_AT_ONCE | portable.NOFOLLOW)
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def operations_noted(path: str | os.PathLike[str]) -> int:
    """How many operations, replays included, a plugin has noted so far; costs a single read.

    Raises
    ------
    OSError
        If the file cannot be opened or read.
    """
    descriptor = os.open(path, portable.READ_AT_ONCE | portable.NOFOLLOW)
    try:
        raw = portable.read_at(descriptor, 8, layout.OPERATIONS_USED_AT)
    finally:
        os.close(descriptor)
    return int.from_bytes(raw, "little")


def find_device_ring(ring: str | os.PathLike[str]) -> Path | None:
    """The device ring of a ring, beside it or beside the file that it links to, if there is one."""
    # Strings: most rings of a large job have none, and paths would be made for nothing.
    name = os.fspath(ring)
    for place in (name, os.path.realpath(name)) if os.path.islink(name) else (name,):
        found = layout.device_file(place)
        if os.path.isfile(found):
            return Path(found)
    return None


def _read(descriptor: int) -> DeviceRing:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size < layout.HEADER_BYTES:
        raise RingError("too short for a device ring")
    head = portable.read_at(descriptor, layout.HEADER_BYTES, 0)
    start = dict(zip(layout.HEADER_FIELDS, layout.FIXED_START.unpack_from(head), strict=True))
    _check(start, status.st_size)
    used = _number(head, layout.COMMUNICATORS_USED_AT)
    communicators = _table(
        descriptor, start["communicators_at"], min(used, start["communicator_count"]), COMMUNICATOR
    )
    complete: npt.NDArray[np.bool_] = communicators["commit"] == 1
    if not complete.all():
        # Indexes count entries, so an incomplete one is emptied, not left out.
        communicators[~complete] = np.zeros((), COMMUNICATOR)
    operations = _ring(
        descriptor, start["operations_at"], start["operation_count"], OPERATION,
        _number(head, layout.OPERATIONS_USED_AT),
    )  # fmt: skip
    known = (operations["communicator"] >= 1) & (operations["communicator"] <= len(communicators))
    links = _ring(
        descriptor, start["links_at"], start["link_count"], LINK,
        _number(head, layout.LINKS_USED_AT),
    )  # fmt: skip
    return DeviceRing(
        pid=start["pid"],
        interface=start["interface"],
        created_ns=start["created_ns"],
        communicators=communicators,
        operations=operations[known],
        links=links,
    )


def _check(start: Mapping[str, int], size: int) -> None:
    if start["version"] != layout.VERSION:
        raise RingError(
            f"device ring version {start['version']}; this HangScope reads {layout.VERSION}"
        )
    if start["header_bytes"] != layout.HEADER_BYTES:
        raise RingError("damaged: its header is not of this version")
    for name, kind in (("communicator", COMMUNICATOR), ("operation", OPERATION), ("link", LINK)):
        at, count = start[f"{name}s_at"], start[f"{name}_count"]
        if start[f"{name}_bytes"] != kind.itemsize:
            raise RingError("damaged: its entries are not those of this version")
        if not 1 <= count <= layout.MOST_ENTRIES:
            raise RingError("damaged: its tables are larger than any plugin makes them")
        if at < layout.HEADER_BYTES or at % 8 or at + count * kind.itemsize > size:
            raise RingError(f"truncated: its {name}s end outside the file")


def _number(head: bytes, at: int) -> int:
    return int.from_bytes(head[at : at + 8], "little")


def _table(descriptor: int, at: int, count: int, kind: np.dtype[np.void]) -> Table:
    raw = portable.read_at(descriptor, count * kind.itemsize, at)
    if len(raw) < count * kind.itemsize:
        raise RingError("it became shorter while it was read")
    return np.frombuffer(bytearray(raw), kind)


def _ring(descriptor: int, at: int, count: int, kind: np.dtype[np.void], used: int) -> Table:
    """The valid entries of a ring, oldest first.

    An entry that is being written, or was overwritten while it was read, is left out: its id was
    valid both before and after the copy, and belongs where it lies.
    """
    length = min(used, count)
    before = _table(descriptor, at, length, kind)["commit"].copy()
    entries = _table(descriptor, at, length, kind)
    ids = entries["id"]
    place = (ids - np.uint64(1)) % np.uint64(count)
    valid = (before == ids) & (entries["commit"] == ids) & (ids > 0)
    valid &= place == np.arange(length, dtype=np.uint64)
    order = np.argsort(ids[valid], kind="stable")
    found: Table = entries[valid][order]
    return found
