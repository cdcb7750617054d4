"""The ring file: what is written is read back, and damage is rejected with a clear message."""

from __future__ import annotations

import functools
import itertools
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hangscope.recording.stack_samples import sample_threads
from hangscope.ring import layout, process_identity
from hangscope.ring.checks import RingError
from hangscope.ring.layout import ExitKind, ValueKind
from hangscope.ring.reader import RingReader, decode_text
from hangscope.ring.writer import LAST_RECORD_CELL, RingIdentity, RingWriter
from hangscope.trace.rings.read import read_ring
from tests.depth import examples
from tests.real_jobs import ROOT
from tests.threads import run_together

IDENTITY = RingIdentity(run_id="run", rank=3, world_size=4, host="node0", pid=1, boot_id="another")
SMALL = {"group_count": 4, "values_bytes": 4096}


def write_records(ring: RingWriter, first: int, last: int, group: int = 1, stack: int = 0) -> None:
    """Records ``first`` to ``last``; sequence numbers equal record ids."""
    signature = ring.intern(ValueKind.SIGNATURE, b'{"op":"gloo:all_reduce","in":[[4]]}')
    for number in range(first, last + 1):
        layout.SLOT_FORMAT.pack_into(
            ring.memory, ring.slot_at(number), number, 1000 + number, 0, 0, number, 0, number, 7,
            group, signature, stack, -1, -1, 5, 1000, 4, 4, 0, 0, number,
        )  # fmt: skip
        ring.cells[LAST_RECORD_CELL] = number


@pytest.fixture
def ring(tmp_path: Path) -> RingWriter:
    writer = RingWriter(tmp_path / "rank_3.ring", IDENTITY, 16, **SMALL)
    writer.add_group("0", "dp", [0, 1, 2, 3], "gloo", 0, 3, observable=True)
    return writer


def test_written_values_are_read(ring: RingWriter) -> None:
    write_records(ring, 1, 5)
    ring.set_record(5, state=2, flags=1, completed_ns=99)
    ring.set_phases([(ring.text("checkpoint"), ring.text("step 3"), 42)])
    ring.record_exit(ExitKind.CODE, 3)
    fragment = read_ring(ring.path)
    assert fragment.facts.rank == 3
    assert fragment.facts.host == "node0"
    assert fragment.facts.exit is not None
    assert fragment.facts.exit.code == 3
    assert [(p.name, p.detail, p.since_ns) for p in fragment.facts.phases] == [
        ("checkpoint", "step 3", 42)
    ]
    assert fragment.groups[0].ranks == (0, 1, 2, 3)
    assert fragment.records["collective_seq"].tolist() == [1, 2, 3, 4, 5]
    assert fragment.records["state"].tolist() == [0, 0, 0, 0, 2]
    assert fragment.signatures[fragment.records["signature"][0]].input_sizes == ((4,),)


def test_oldest_records_are_overwritten(ring: RingWriter) -> None:
    write_records(ring, 1, 40)
    slots, torn = RingReader(ring.path).slots()
    assert slots["record_id"].tolist() == list(range(25, 41))
    assert torn == 0
    assert read_ring(ring.path).facts.oldest_record_id == 25


@pytest.mark.parametrize("count", [0, 5, 16, 40])
def test_slots_are_read_into_given_memory(ring: RingWriter, count: int) -> None:
    write_records(ring, 1, count)
    given = RingReader(ring.path, lambda length: np.zeros(length, layout.SLOT))
    assert given.slots()[0].tolist() == RingReader(ring.path).slots()[0].tolist()
    given.close()
    given.close()


def test_ring_that_shrinks_while_it_is_read(ring: RingWriter) -> None:
    write_records(ring, 1, 5)
    """A map of it would end this process here."""
    reader = RingReader(ring.path)
    assert reader.is_sound()
    os.truncate(ring.path, layout.HEADER_BYTES)
    for read in (reader.slots, reader.values, reader.groups, lambda: reader.slot_bytes(1, 5)):
        with pytest.raises(RingError, match="shorter"):
            read()
    assert not reader.is_sound()
    os.truncate(ring.path, 0)
    assert not reader.is_sound()
    with pytest.raises(RingError, match="shorter"):
        reader.header()


@pytest.mark.parametrize("kind", ["fifo", "directory", "/dev/zero"])
def test_a_ring_is_a_regular_file(kind: str, tmp_path: Path) -> None:
    path = Path(kind) if kind == "/dev/zero" else tmp_path / "rank_0.ring"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    with pytest.raises((RingError, OSError)):
        RingReader(path)


def test_only_new_records_are_read_again(ring: RingWriter) -> None:
    write_records(ring, 1, 10)
    slots, _ = RingReader(ring.path).slots(since=8)
    assert slots["record_id"].tolist() == [9, 10]


def test_half_written_slot_is_dropped_and_counted(ring: RingWriter) -> None:
    write_records(ring, 1, 10)
    struct.pack_into("=Q", ring.memory, ring.slot_at(7), 23)  # its id is new, its end still old
    slots, torn = RingReader(ring.path).slots()
    assert 7 not in slots["record_id"]
    assert torn == 1
    assert read_ring(ring.path).facts.dropped == 1


@pytest.mark.parametrize("complete", [True, False])
def test_half_written_slot_over_the_oldest_record(ring: RingWriter, complete: bool) -> None:
    last = ring.slot_count + 3
    write_records(ring, 1, last)
    ring.cells[LAST_RECORD_CELL] = last - 1
    if not complete:
        end = ring.slot_at(last) + layout.SLOT.itemsize - 8
        struct.pack_into("=Q", ring.memory, end, last - ring.slot_count)
    slots, torn = RingReader(ring.path).slots()
    assert slots["record_id"].tolist() == list(range(4, last + complete))
    assert torn == (not complete)


def test_complete_but_unpublished_record_counts(ring: RingWriter) -> None:
    write_records(ring, 1, 10)
    ring.cells[LAST_RECORD_CELL] = 9  # killed between the record and its publication
    slots, _ = RingReader(ring.path).slots()
    assert slots["record_id"][-1] == 10


def test_update_never_reaches_a_newer_record(ring: RingWriter) -> None:
    write_records(ring, 1, 20)
    ring.set_record(2, state=2, flags=0, completed_ns=5)  # slot of record 18 by now
    slots, _ = RingReader(ring.path).slots()
    assert not slots["state"].any()


def test_full_tables_cost_detail_but_no_records(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path / "r.ring", IDENTITY, 16, group_count=1, values_bytes=256)
    assert ring.add_group("a", "", [0], "gloo", 0, 0, observable=True) == 1
    assert ring.add_group("b", "", [0], "gloo", 0, 0, observable=True) == 0
    assert any(ring.intern(ValueKind.TEXT, b"x" * 64 + bytes([n])) == 0 for n in range(9))
    write_records(ring, 1, 3)
    fragment = read_ring(ring.path)
    assert len(fragment.records) == 3
    assert any("table" in warning for warning in fragment.warnings)


def test_newest_sample_is_read_whole(ring: RingWriter) -> None:
    for text in (b"first", b"second, longer", sample_threads()):
        ring.write_sample(text)
    threads = read_ring(ring.path).facts.threads
    main = next(thread for thread in threads if thread.is_main)
    assert any(frame.name == "test_newest_sample_is_read_whole" for frame in main.stack)


def test_ring_without_a_sample_has_none(ring: RingWriter) -> None:
    assert RingReader(ring.path).sample() is None


def test_sample_overwritten_during_the_read_is_read_again(
    ring: RingWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the next sample the writer reuses the buffer that is being read."""
    ring.write_sample(b"first")
    reader = RingReader(ring.path)
    read = reader._read

    def overtaken(at: int, length: int) -> bytes:
        found = read(at, length)
        if found == b"first":
            ring.write_sample(b"second")
        return found

    monkeypatch.setattr(reader, "_read", overtaken)
    sample = reader.sample()
    assert sample is not None
    assert sample.text == "second"


def test_sample_always_overwritten_is_none(
    ring: RingWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring.write_sample(b"first")
    reader = RingReader(ring.path)
    read = reader._read

    def overtaken(at: int, length: int) -> bytes:
        ring.write_sample(b"newer")
        return read(at, length)

    monkeypatch.setattr(reader, "_read", overtaken)
    assert reader.sample() is None


@pytest.mark.parametrize("field", ["initialized", "finalized", "flags", None])
def test_declared_rank_and_world_size_are_flagged(ring: RingWriter, field: str | None) -> None:
    """Older recorders, without the flag, say so by ``initialized`` alone."""
    if field == "flags":
        ring.put_i8("flags", int(layout.RingFlag.DECLARED))
    elif field is not None:
        ring.put_u4(field, 1)
    reader = RingReader(ring.path)
    assert reader.place() == (3, 4, field is not None)
    assert reader.header().declared == (field is not None)


def test_heartbeats_are_counted_and_dated(ring: RingWriter) -> None:
    before = RingReader(ring.path).header()
    ring.beat()
    ring.beat()
    after = RingReader(ring.path).header()
    assert (before.heartbeat_count, after.heartbeat_count) == (0, 2)
    assert after.heartbeat_ns > before.heartbeat_ns


def test_existing_file_is_never_overwritten(ring: RingWriter) -> None:
    with pytest.raises(FileExistsError):
        RingWriter(ring.path, IDENTITY, 16)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "too short"),
        (b"HSRING", "too short"),
        (b"\x80\x04" + bytes(8192), "no magic number"),
        (b"HSRING\x00\x09" + bytes(8192), "version"),
    ],
)
def test_other_files_are_rejected_with_a_clear_message(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "foreign.ring"
    path.write_bytes(content)
    with pytest.raises(RingError, match=why):
        RingReader(path)


@pytest.mark.parametrize("rank", [-1, 1 << 17, 2**31 - 1])
def test_impossible_rank_is_rejected(ring: RingWriter, rank: int) -> None:
    ring.put_world(rank, 4)
    with pytest.raises(RingError, match=f"no job has a rank {rank}"):
        RingReader(ring.path)


def test_truncated_file_is_refused(ring: RingWriter, tmp_path: Path) -> None:
    cut = tmp_path / "cut.ring"
    cut.write_bytes(ring.path.read_bytes()[:8000])
    with pytest.raises(RingError, match="truncated"):
        RingReader(cut)


@pytest.mark.parametrize("field", ["name", "ranks"])
@pytest.mark.parametrize("other", [True, False], ids=["of another kind", "nowhere"])
def test_group_without_name_or_members_is_refused(
    ring: RingWriter, field: str, other: bool
) -> None:
    wrong = ring.intern(ValueKind.SIGNATURE, b"{}") if other else 400
    at = layout.HEADER_BYTES + layout.group_offset(field)
    struct.pack_into("=I", ring.memory, at, wrong)
    with pytest.raises(RingError, match="process groups is not whole"):
        read_ring(ring.path)


@pytest.mark.parametrize(("disabled", "kind"), [(0, "unknown"), (1, None)])
def test_end_is_unknown_after_the_recorder_failed(
    tmp_path: Path, disabled: int, kind: str | None
) -> None:
    """That nothing was recorded does not mean anything then."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    here = {
        "boot_id": process_identity.boot_id(),
        "pid_namespace": process_identity.pid_namespace(),
    }
    identity = RingIdentity("run", 0, 1, pid=process.pid, start_ticks=1, **here)
    ring = RingWriter(tmp_path / "rank_0.ring", identity, 16, **SMALL)
    ring.put_u4("disabled", disabled)
    facts = read_ring(ring.path).facts
    assert facts.alive is False
    assert (facts.exit.kind if facts.exit is not None else None) == kind


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    patches=st.lists(
        st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=16)), min_size=1, max_size=12
    )
)
def test_arbitrary_damage_is_an_error_or_a_reading(
    tmp_path_factory: pytest.TempPathFactory, patches: list[tuple[float, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("damage") / "r.ring"
    ring = RingWriter(path, IDENTITY, 16, **SMALL)
    ring.add_group("0", "dp", [0, 1], "gloo", 0, 0, observable=True)
    stack = ring.intern(
        ValueKind.STACK, struct.pack("=I", ring.intern(ValueKind.FRAME, b"f\0g\0001"))
    )
    write_records(ring, 1, 20, stack=stack)
    ring.write_sample(sample_threads())
    raw = bytearray(path.read_bytes())
    interesting = [*range(1280), *range(4096, len(raw))]
    for where, patch in patches:
        at = interesting[int(where * (len(interesting) - 1))]
        raw[at : at + len(patch)] = patch[: len(raw) - at]
    path.write_bytes(raw)
    try:
        fragment = read_ring(path)
    except RingError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
    else:
        assert len(fragment.records) <= 16
        for index in fragment.records["stack"].tolist():
            assert index == -1 or isinstance(fragment.stacks[index], tuple)


def test_blocks_are_reserved_so_that_a_full_disk_shows_at_creation(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path / "r.ring", IDENTITY, 1000)
    status = os.stat(ring.path)
    assert status.st_blocks * 512 >= status.st_size


def test_layout_is_that_of_the_format() -> None:
    assert layout.SLOT.itemsize == layout.SLOT_FORMAT.size
    assert layout.HEADER.itemsize == layout.HEADER_BYTES
    fields = sorted(
        (offset, np.dtype(kind).itemsize, name)
        for name, (kind, offset, *_) in layout.HEADER.fields.items()
    )
    for (start, size, name), (following, _, other) in itertools.pairwise(fields):
        assert start + size <= following, f"{name} overlaps {other}"


def test_ring_size_is_the_documented_one(tmp_path: Path) -> None:
    told = re.findall(
        r"^\| (?:header|groups|slots|samples|values) \|.*\| ([\d,]+) \|$",
        (ROOT / "docs" / "architecture.md").read_text(),
        re.MULTILINE,
    )
    areas = [int(number.replace(",", "")) for number in told]
    assert areas == [
        layout.HEADER_BYTES,
        layout.GROUP_COUNT * layout.GROUP.itemsize,
        10_000 * layout.SLOT.itemsize,
        2 * layout.SAMPLE_BYTES,
        layout.VALUES_BYTES,
    ]
    ring = RingWriter(tmp_path / "rank_3.ring", IDENTITY)
    assert os.stat(ring.path).st_size == sum(areas)
    said = (ROOT / "docs" / "recorder.md").read_text()
    assert f"64 KiB samples = {sum(areas) / 2**20:.1f} MiB" in said


def test_text_fields_are_decoded() -> None:
    assert decode_text(np.bytes_(b"abc\x00\x00")) == "abc"


def test_threads_get_distinct_slots(tmp_path: Path) -> None:
    """Values, groups and records of four threads that are switched as often as possible."""
    ring = RingWriter(tmp_path / "rank_3.ring", IDENTITY, 16, values_bytes=1 << 22)
    ids: list[dict[bytes, int]] = [{} for _ in range(4)]
    groups: list[list[int]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        for turn in range(4000):
            value = f"{number} {turn} {'x' * (turn % 50)}".encode()
            ids[number][value] = ring.intern(ValueKind.TEXT, value)
            if turn % 8 == 0:
                groups[number].append(
                    ring.add_group("g", "", [number], "gloo", turn, 0, observable=True)
                )

    run_together([functools.partial(work, number) for number in range(4)], 1e-9)
    reader = RingReader(ring.path)
    for own in ids:
        assert {value: reader.value(i, ValueKind.TEXT) for value, i in own.items()} == {
            value: value for value in own
        }
    places = sorted(place for own in groups for place in own)
    assert places == list(range(1, 2001))
