"""Device rings that are cut off, damaged or somebody else's."""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path

import pytest

from hangscope.ring import device_layout as layout
from hangscope.ring.checks import RingError
from hangscope.ring.device_reader import read_device_ring
from tests.nccl_plugin.test_plugin import ONE_OF_EACH, play

pytestmark = pytest.mark.xdist_group("nccl_plugin")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ring = tmp_path_factory.mktemp("sound") / "rank_0.device"
    play(ONE_OF_EACH, ring)
    return ring


def copied(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "rank_0.device"))


def test_one_that_is_cut_off_is_refused(sound: Path, tmp_path: Path) -> None:
    for length in (0, 7, 4095, 4096, 200_000, sound.stat().st_size - 1):
        ring = copied(sound, tmp_path)
        os.truncate(ring, length)
        with pytest.raises(RingError):
            read_device_ring(ring)


@pytest.mark.parametrize(
    ("at", "value"),
    [(8, 99), (12, 7), (16, 4), (20, 0), (20, 1 << 31), (28, 0), (40, 3), (48, 1 << 60), (56, 12)],
)
def test_one_with_impossible_tables_is_refused(
    sound: Path, tmp_path: Path, at: int, value: int
) -> None:
    ring = copied(sound, tmp_path)
    raw = bytearray(ring.read_bytes())
    raw[at : at + 4] = struct.pack("<I", value & 0xFFFFFFFF)
    if value >> 32:
        raw[at : at + 8] = struct.pack("<Q", value)
    ring.write_bytes(raw)
    with pytest.raises(RingError):
        read_device_ring(ring)


def test_any_damage_behind_the_header_is_survived(sound: Path, tmp_path: Path) -> None:
    ring = copied(sound, tmp_path)
    whole = ring.read_bytes()
    chance = random.Random(7)
    for _ in range(200):
        raw = bytearray(whole)
        for _ in range(chance.randrange(1, 40)):
            place = chance.choice([1024, 1088, 4096, 4096 + 131072, 4096 + 131072 + 524288])
            at = place + chance.randrange(600)
            raw[at] = chance.randrange(256)
        ring.write_bytes(raw)
        found = read_device_ring(ring)
        assert (found.operations["id"] == found.operations["commit"]).all()
        assert (found.operations["communicator"] <= len(found.communicators)).all()


def test_a_link_and_a_fifo_are_not_followed(sound: Path, tmp_path: Path) -> None:
    link, fifo = tmp_path / "link.device", tmp_path / "fifo.device"
    link.symlink_to(sound)
    os.mkfifo(fifo)
    with pytest.raises(OSError):
        read_device_ring(link)
    with pytest.raises(RingError):
        read_device_ring(fifo)


def test_another_version_is_named(sound: Path, tmp_path: Path) -> None:
    ring = copied(sound, tmp_path)
    raw = bytearray(ring.read_bytes())
    raw[8:12] = struct.pack("<I", layout.VERSION + 1)
    ring.write_bytes(raw)
    with pytest.raises(RingError, match="version 2"):
        read_device_ring(ring)
