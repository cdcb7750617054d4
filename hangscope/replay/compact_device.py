"""Rewrites a device ring without its unused space, as a valid one for the same reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hangscope.replay.redact import Redactor
from hangscope.ring import device_layout as layout
from hangscope.ring.checks import RingError
from hangscope.ring.device_reader import DeviceRing, Table, find_device_ring, read_device_ring


def compact_device_ring(ring: Path, target: Path, redactor: Redactor | None = None) -> None:
    """Write the device ring beside ``ring`` beside ``target``, without its unused space.

    Without one, or with one that is of no use to any reader, nothing is written.

    Parameters
    ----------
    ring, target:
        A rank's ring, and the copy of it.
    redactor:
        Replaces words in names of communicators, which the job gives them.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    source = find_device_ring(ring)
    if source is None:
        return
    try:
        device = read_device_ring(source)
    except (RingError, OSError):
        return
    layout.device_path(target).write_bytes(_compact(device, redactor))


def _compact(device: DeviceRing, redactor: Redactor | None) -> bytes:
    communicators = device.communicators.copy()
    if redactor is not None:
        communicators["name"] = [
            redactor.prose(name.decode("utf-8", "replace")).encode()
            for name in communicators["name"].tolist()
        ]
    tables = [_at_least_one(communicators), _placed(device.operations), _placed(device.links)]
    at, places = layout.HEADER_BYTES, []
    for table in tables:
        places.append(at)
        at += table.nbytes
    head = bytearray(layout.HEADER_BYTES)
    sizes = [number for table in tables for number in (table.itemsize, len(table))]
    layout.FIXED_START.pack_into(
        head, 0, layout.MAGIC, layout.VERSION, layout.HEADER_BYTES, *sizes, *places, at,
        device.created_ns, device.pid, device.interface,
    )  # fmt: skip
    used = (len(communicators), *(int(t["id"].max(initial=0)) for t in tables[1:]))
    where = (layout.COMMUNICATORS_USED_AT, layout.OPERATIONS_USED_AT, layout.LINKS_USED_AT)
    for offset, number in zip(where, used, strict=True):
        head[offset : offset + 8] = number.to_bytes(8, "little")
    return b"".join((bytes(head), *(table.tobytes() for table in tables)))


def _placed(entries: Table) -> Table:
    """A ring that is just large enough for these entries, each where its id belongs."""
    ids = entries["id"].astype(np.int64)
    count = int(ids[-1] - ids[0]) + 1 if len(ids) else 1
    ring = np.zeros(count, entries.dtype)
    ring[(ids - 1) % count] = entries
    return ring


def _at_least_one(communicators: Table) -> Table:
    return communicators if len(communicators) else np.zeros(1, communicators.dtype)
