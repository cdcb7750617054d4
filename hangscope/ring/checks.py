"""What makes a file a ring of this version: sizes and offsets that fit into it."""

from __future__ import annotations

import functools
import os
import stat

from hangscope.ring import layout
from hangscope.ring.layout import GROUP, SLOT

_MOST_TIMES = 64
"""Largest plausible size of a table, as a multiple of this version's."""
MOST_RECORDS = 1 << 48
"""Largest plausible record id: a million records a second for nine years."""


class RingError(Exception):
    """The file is not a usable ring; the message says why in one clause."""


@functools.lru_cache(64)
def checked_start(start: bytes, ready: bool, size: int) -> tuple[int, ...]:
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


def is_possible_place(rank: int, world_size: int) -> bool:
    """Whether rank and world size are plausible together.

    Replicas may count their ranks differently from their world size, but are not far off.
    """
    far = _MOST_TIMES * world_size if world_size > 0 else layout.MAX_RANK + 1
    return 0 <= rank <= layout.MAX_RANK and rank < far


def checked_size(descriptor: int) -> int:
    """The size of an open file in bytes.

    Raises
    ------
    RingError
        If it is no regular file or too small for a header.
    """
    status = os.fstat(descriptor)
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    if size < layout.HEADER_BYTES:
        raise RingError(f"too short for a ring ({size} bytes)")
    return size
