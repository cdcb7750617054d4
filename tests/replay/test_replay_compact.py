"""Compact rings: smaller by orders of magnitude, and the reader sees no difference."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hangscope.replay.compact import compact_ring
from hangscope.replay.redact import Redactor
from hangscope.ring.checks import RingError
from hangscope.ring.layout import HEADER, SLOT_FORMAT, ExitKind, ValueKind, header_offset
from hangscope.ring.reader import RingReader
from hangscope.ring.writer import RingIdentity, RingWriter
from hangscope.trace.model import Fragment
from hangscope.trace.rings.read import read_ring


def _write(path: Path, records: int, slot_count: int) -> RingWriter:
    """A ring as a recorder leaves it: two groups, one stack per record, phases, an exception."""
    identity = RingIdentity(
        "run", 3, 8, host="gpu-node-17", cwd="/home/ann/secret", boot_id="boot", pid=4711
    )
    ring = RingWriter(path, identity, slot_count)
    ring.add_group("0", "default_pg", range(8), "gloo", 0, 3, observable=True)
    ring.add_group("1", "tp", [2, 3], "gloo", 0, 1, observable=True)
    for number in range(1, records + 1):
        frames = [
            ring.intern(ValueKind.FRAME, f"step\0/home/ann/secret/train.py\0{number % 7}".encode()),
            ring.intern(ValueKind.FRAME, b"run\0/opt/lib/python3.11/site-packages/x/y.py\09"),
        ]
        stack = ring.intern(ValueKind.STACK, np.asarray(frames, "<u4").tobytes())
        signature = ring.intern(
            ValueKind.SIGNATURE,
            json.dumps({"op": "gloo:all_reduce", "in": [[number % 3]], "out": [[1]]}).encode(),
        )
        SLOT_FORMAT.pack_into(
            ring.memory, ring.slot_at(number), number, 10 * number, 0, 10 * number + 5, number, 0,
            number, 99 + number, 1 + number % 2, signature, stack, -1, -1, 1, 1000, 4, 4, 2, 1,
            number,
        )  # fmt: skip
        ring.put_i8("last_record_id", number)
    ring.set_phases([(ring.text("checkpoint"), ring.text("/home/ann/secret/ckpt"), 123)])
    ring.write_sample(b"T main 1 MainThread\nF 7\0save\0/home/ann/secret/train.py")
    ring.record_exception(
        json.dumps(
            {
                "type": "OSError", "message": "no space on gpu-node-17:/home/ann/secret/ckpt",
                "thread": "MainThread", "main": True,
                "frames": [["save", "/home/ann/secret/train.py", 7]],
            }
        ).encode()
    )  # fmt: skip
    return ring


def _comparable(fragment: Fragment) -> tuple[object, ...]:
    facts = replace(
        fragment.facts, alive=None, process_state=None, gil_blocked=None, observed_ns=0, exit=None
    )
    signatures = [fragment.signatures[i] for i in fragment.records["signature"]]
    stacks = [fragment.stacks[i] for i in fragment.records["stack"]]
    plain = fragment.records.copy()
    plain["signature"] = plain["stack"] = 0
    tables = plain.tolist(), fragment.members.tolist()  # not their bytes: rows have gaps
    return (facts, signatures, stacks, tables, fragment.groups)


@pytest.mark.parametrize(
    ("records", "slot_count"), [(0, 16), (1, 16), (16, 16), (17, 16), (100, 16), (40, 10_000)]
)
def test_compact_ring_reads_like_the_original(
    tmp_path: Path, records: int, slot_count: int
) -> None:
    original, small = tmp_path / "rank_3.ring", tmp_path / "small.ring"
    _write(original, records, slot_count)
    compact_ring(original, small)
    before, after = read_ring(original), read_ring(small)
    assert _comparable(after) == _comparable(before)
    assert len(after.records) == min(records, slot_count)
    assert small.stat().st_size < original.stat().st_size / 100


def test_later_process_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    original, small = tmp_path / "rank_3.ring", tmp_path / "small.ring"
    _write(original, 5, 16)
    compact_ring(original, small)
    facts = read_ring(small).facts
    assert facts.alive is None
    assert facts.gil_blocked is None
    assert RingReader(small).header().fault_signal == 0


def test_redaction_keeps_the_structure_and_nothing_else(tmp_path: Path) -> None:
    original, small = tmp_path / "rank_3.ring", tmp_path / "small.ring"
    _write(original, 20, 16)
    compact_ring(original, small, Redactor(["gpu-node-17"]))
    data = small.read_bytes()
    for secret in (b"ann", b"secret/", b"gpu-node-17"):
        assert secret not in data
    before, after = read_ring(original), read_ring(small)
    assert len(after.records) == len(before.records)
    stack = after.stacks[int(after.records["stack"][0])]
    assert [f.filename for f in stack] == [
        "/redacted/1/train.py",
        "/redacted/lib/python3.11/site-packages/x/y.py",
    ]
    assert after.facts.host == "host1"
    assert after.facts.exception is not None
    assert after.facts.exception.message == "no space on host1:/redacted/1/ckpt"
    assert after.facts.main_stack[0].filename == "/redacted/1/train.py"
    assert after.facts.phases[0].name == "checkpoint"


def test_torn_slot_stays_counted(tmp_path: Path) -> None:
    original, small = tmp_path / "rank_3.ring", tmp_path / "small.ring"
    ring = _write(original, 8, 16)
    ring.memory[ring.slot_at(4) + 120 : ring.slot_at(4) + 128] = (77).to_bytes(8, "little")
    compact_ring(original, small)
    assert read_ring(original).facts.dropped == read_ring(small).facts.dropped == 1
    assert len(read_ring(small).records) == 7


def test_exiting_process_has_no_exit_yet(tmp_path: Path) -> None:
    original, small = tmp_path / "rank_3.ring", tmp_path / "small.ring"
    _write(original, 3, 16).record_exit(ExitKind.CLEAN, 0)
    compact_ring(original, small)
    facts = read_ring(small).facts
    assert facts.exit is not None
    assert facts.exit.kind == "clean"
    compact_ring(original, small, on_its_way_out=True)
    assert read_ring(small).facts.exit is None


def test_only_the_newest_records_are_kept_if_enough(tmp_path: Path) -> None:
    original, small = tmp_path / "rank_3.ring", tmp_path / "small.ring"
    _write(original, 40, 64)
    compact_ring(original, small, newest=10)
    after = read_ring(small)
    assert after.records["record_id"].tolist() == list(range(31, 41))
    assert after.facts.oldest_record_id == 31


def test_no_stray_memory_is_written(tmp_path: Path) -> None:
    original, small = tmp_path / "rank_3.ring", tmp_path / "small.ring"
    _write(original, 3, 16)
    fields = HEADER.fields
    assert fields is not None
    used = np.zeros(HEADER.itemsize, bool)
    for name in HEADER.names or ():
        at = fields[name][1]
        used[at : at + fields[name][0].itemsize] = True
    for _ in range(20):
        junk = [b"/home/ann/secret" * 300 for _ in range(50)]
        del junk
        compact_ring(original, small)
        header = np.frombuffer(small.read_bytes()[: HEADER.itemsize], np.uint8)
        assert not header[~used].any()


def test_other_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"HSRING" + bytes(header_offset("phases")))
    with pytest.raises(RingError):
        compact_ring(tmp_path / "x", tmp_path / "y")
    assert not (tmp_path / "y").exists()
