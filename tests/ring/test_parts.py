"""Reading parts of a ring: runs of slots, and single values."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from hangscope.ring import layout
from hangscope.ring.layout import ValueKind
from hangscope.ring.reader import RingReader
from hangscope.ring.writer import RingWriter
from tests.ring.test_ring import IDENTITY, SMALL, write_records

_SLOTS = 16


@pytest.fixture
def ring(tmp_path: Path) -> RingWriter:
    return RingWriter(tmp_path / "rank_3.ring", IDENTITY, _SLOTS, **SMALL)


@pytest.mark.parametrize(
    ("first", "last", "pieces"),
    [
        (17, 20, 1),
        (5, 16, 1),  # up to the end of the area
        (5, 20, 2),  # all of it, from the oldest on
        (16, 17, 2),
        (20, 20, 1),
    ],
)
def test_slots_are_in_order_across_the_end(
    ring: RingWriter, first: int, last: int, pieces: int
) -> None:
    write_records(ring, 1, 20)
    reader = RingReader(ring.path)
    views = reader.slot_bytes(first, last)
    records = b"".join(views)
    ids = [struct.unpack_from("<Q", records, at)[0] for at in range(0, len(records), 128)]
    assert ids == list(range(first, last + 1))
    assert len(views) == pieces


def test_value_has_only_its_own_kind(ring: RingWriter) -> None:
    name = ring.intern(ValueKind.TEXT, b"checkpoint")
    reader = RingReader(ring.path)
    assert reader.value(name) == reader.value(name, ValueKind.TEXT) == b"checkpoint"
    assert reader.value(name, ValueKind.SIGNATURE) is None
    assert reader.text(name) == "checkpoint"
    stack = ring.intern(ValueKind.STACK, b"{}")
    assert reader.text(stack) == ""


@pytest.mark.parametrize("identifier", [0, -1, 1 << 40])
def test_invalid_id_has_no_value(ring: RingWriter, identifier: int) -> None:
    ring.intern(ValueKind.TEXT, b"checkpoint")
    reader = RingReader(ring.path)
    assert reader.value(identifier) is None
    assert reader.text(identifier) == ""


def test_value_may_end_where_the_area_ends(ring: RingWriter) -> None:
    """The last but one value leaves room for one header, which an empty value then takes."""
    area, header = int(SMALL["values_bytes"]), layout.VALUE_HEADER.size
    used = len(RingReader(ring.path).values())
    long = ring.intern(ValueKind.TEXT, b"x" * (area - used - 2 * header))
    empty = ring.intern(ValueKind.TEXT, b"")
    reader = RingReader(ring.path)
    assert len(reader.value(long) or b"") == area - used - 2 * header
    assert reader.value(empty) == b""
    assert len(reader.values()) == len(reader.values(used=2 * area)) == area


def test_value_longer_than_the_area_is_invalid(ring: RingWriter) -> None:
    name = ring.intern(ValueKind.TEXT, b"checkpoint")
    at = ring._values_at + name * 8
    for length, known in ((10, True), (int(SMALL["values_bytes"]), False)):
        layout.VALUE_HEADER.pack_into(ring.memory, at, length, ValueKind.TEXT)
        assert (RingReader(ring.path).value(name) is not None) is known


def test_sample_longer_than_its_buffer_is_ignored(ring: RingWriter) -> None:
    ring.write_sample(b"[]")
    reader = RingReader(ring.path)
    assert reader.sample() is not None
    at = reader._samples_at + (reader.header().sample_generation & 1) * reader._sample_bytes
    for length, known in ((reader._sample_bytes - 4, True), (reader._sample_bytes - 3, False)):
        struct.pack_into("<I", ring.memory, at, length)
        assert (RingReader(ring.path).sample() is not None) is known
