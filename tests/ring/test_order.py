"""Processors that reorder loads and stores: what is unfinished never reads as finished."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hangscope.ring import atomic, layout, writer
from hangscope.ring.reader import RingReader
from hangscope.ring.writer import LAST_RECORD_CELL, RingWriter
from tests.ring.test_ring import IDENTITY, SMALL, write_records

SLOTS = 16
PEER = layout.SLOT.fields["peer"][1]  # type: ignore[index]


@pytest.fixture
def ring(tmp_path: Path) -> RingWriter:
    """A small ring with one group."""
    made = RingWriter(tmp_path / "rank_3.ring", IDENTITY, SLOTS, **SMALL)
    made.add_group("0", "dp", [0, 1, 2, 3], "gloo", 0, 3, observable=True)
    return made


def reading(ring: RingWriter, meanwhile: Callable[[], object]) -> RingReader:
    """A reader beside which the writer does something as soon as the first slots are copied."""
    reader = RingReader(ring.path)
    copy = reader._copy_slots
    left = [meanwhile]

    def copy_and_go_on(*arguments: Any) -> None:
        copy(*arguments)
        while left:
            left.pop()()

    reader._copy_slots = copy_and_go_on  # type: ignore[method-assign]
    return reader


def test_slot_in_steps_is_the_same_slot(ring: RingWriter) -> None:
    write_records(ring, 1, 1)
    at = ring.slot_at(1)
    usual = bytes(ring.memory[at : at + layout.SLOT.itemsize])
    ring.memory[at : at + layout.SLOT.itemsize] = bytes(layout.SLOT.itemsize)
    writer.pack_slot_in_steps(ring.memory, at, *layout.SLOT_FORMAT.unpack(usual))
    assert bytes(ring.memory[at : at + layout.SLOT.itemsize]) == usual


def test_slot_is_void_until_all_of_it_is_there(
    ring: RingWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(ring, 1, 1)
    at = ring.slot_at(1)
    commits = []
    monkeypatch.setattr(
        writer,
        "barrier",
        lambda: commits.append(struct.unpack_from("=Q", ring.memory, at + 120)[0]),
    )
    fields = layout.SLOT_FORMAT.unpack_from(ring.memory, at)
    writer.pack_slot_in_steps(ring.memory, at, *fields)
    assert commits == [0, 0, 1]


def test_barrier_never_waits_for_another_thread() -> None:
    atomic._full_barrier()
    others = [threading.Thread(target=atomic._full_barrier) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join(10)
    assert not any(other.is_alive() for other in others)


def test_unpublished_record_that_is_changing_is_not_read(ring: RingWriter) -> None:
    write_records(ring, 1, 4)
    ring.cells[LAST_RECORD_CELL] = 3
    change = reading(ring, lambda: struct.pack_into("=i", ring.memory, ring.slot_at(4) + PEER, 2))
    assert change.slots()[0]["record_id"].tolist() == [1, 2, 3]
    assert RingReader(ring.path).slots()[0]["record_id"].tolist() == [1, 2, 3, 4]


def test_what_was_overwritten_during_the_read_is_gone_but_not_lost(ring: RingWriter) -> None:
    write_records(ring, 1, SLOTS)
    reader = reading(ring, lambda: write_records(ring, SLOTS + 1, SLOTS + 3))
    records, lost = reader.slots()
    assert records["record_id"].tolist() == list(range(4, SLOTS + 1))
    assert lost == 0


def test_oldest_record_stays_until_its_slot_is_given_away(ring: RingWriter) -> None:
    write_records(ring, 1, SLOTS)
    records, lost = RingReader(ring.path).slots()
    assert (records["record_id"].tolist(), lost) == (list(range(1, SLOTS + 1)), 0)
    change = reading(ring, lambda: struct.pack_into("=i", ring.memory, ring.slot_at(1) + PEER, 2))
    records, lost = change.slots()
    assert (records["record_id"].tolist(), lost) == (list(range(2, SLOTS + 1)), 0)
