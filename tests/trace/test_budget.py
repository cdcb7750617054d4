"""What reading costs is limited; what exceeds the budget is named, and the rest is judged."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.ring import layout
from hangscope.trace.load import load_trace
from hangscope.trace.loading.budget import GIB, Budget, default_budget
from tests.live_rings import RingRank
from tests.trace.dumps import dump, entry, pending, write
from tests.trace.logs import timeout

PLENTY = Budget(GIB, 600, GIB)
MIB = 1 << 20


def budget(memory: int = GIB, seconds: float = 600, written: int = GIB) -> Budget:
    return Budget(memory, seconds, written)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job that can be judged."""
    for rank in range(2):
        write(tmp_path, f"nccl_trace_rank_{rank}", dump([entry(1), pending(2 + rank)], 2))
    return tmp_path


def judged(folder: Path, given: Budget, why: str, count: int = 1) -> None:
    """The rest is judged, and so many files are named."""
    trace = load_trace([folder], budget=given)
    assert sorted(trace.ranks) == [0, 1]
    assert diagnose(trace).summary
    assert len([u for u in trace.unread if why in u.why]) == count, trace.unread


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("rank_9.json", b'{"entries": ['),
        ("x.log", b"[rank9]: step\n" * 6000),
        ("trace_9", b"\x80\x04}"),
    ],
    ids=["json", "log", "pickle"],
)
def test_a_terabyte_of_holes_is_not_read(folder: Path, name: str, head: bytes) -> None:
    with (folder / name).open("wb") as file:
        file.write(head)
        file.truncate(1 << 40)
    began_s = time.monotonic()
    judged(folder, budget(), "mostly holes")
    assert time.monotonic() - began_s < 10


def test_a_ring_that_claims_millions_of_records_is_not_read(tmp_path: Path) -> None:
    ranks = [RingRank(tmp_path, rank, 3) for rank in range(3)]
    for rank in ranks:
        rank.join("0", "default_pg", range(3))
        rank.issue(1, "all_reduce")
    path = tmp_path / "rank_2.ring"
    data = bytearray(path.read_bytes())
    start = list(layout.FIXED_START.unpack_from(data))
    start[4], start[8] = layout.MAX_SLOTS, layout.align8(len(data))  # slots, after all the rest
    layout.FIXED_START.pack_into(data, 0, *start)
    at = layout.header_offset("last_record_id")
    data[at : at + 8] = (layout.MAX_SLOTS * 2).to_bytes(8, "little")
    with path.open("wb") as file:
        file.write(data)
        file.truncate(2 * GIB)
    trace = load_trace([tmp_path], budget=budget())
    assert sorted(trace.ranks)[:2] == [0, 1]
    assert any("mostly holes" in u.why for u in trace.unread)


def test_rings_share_the_memory(tmp_path: Path) -> None:
    for rank in range(3):
        own = RingRank(tmp_path, rank, 3, slots=2000)
        own.join("0", "default_pg", range(3))
        for _ in range(1500):
            own.issue(1, "all_reduce")
    trace = load_trace([tmp_path], budget=budget(memory=2 * 1501 * layout.SLOT.itemsize))
    assert len(trace.ranks) >= 2
    assert [u.why for u in trace.unread] == [
        "its records do not fit into memory; allow more with --max-memory"
    ]


def test_a_dump_larger_than_memory_is_not_read(folder: Path) -> None:
    (folder / "nccl_trace_rank_9.json").write_text(
        json.dumps({"entries": [], "x": "y" * (3 * MIB)})
    )
    judged(folder, budget(memory=32 * MIB), "more than can be read in memory")


@pytest.mark.long
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize(
    "content", [b'{"entries": [' + b" " * 100, b"step 1\n"], ids=["json", "log"]
)
def test_a_small_file_does_not_inflate_without_end(
    folder: Path, pack: Callable[[bytes], bytes], content: bytes
) -> None:
    (folder / "rank_9.log.gz").write_bytes(pack(content * (24 * MIB // len(content))))
    began_s = time.process_time()
    trace = load_trace([folder], budget=budget())
    assert sorted(trace.ranks)[:2] == [0, 1]
    assert time.process_time() - began_s < 10


def test_a_log_that_shrinks_well_is_read_whole(tmp_path: Path) -> None:
    lines = [timeout(rank, 78) for rank in range(4)]
    text = "".join([*(f"[rank0]: step {n} of many\n" for n in range(200_000)), *lines])
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(text.encode()))
    assert sorted(load_trace([tmp_path], budget=budget()).ranks) == [0, 1, 2, 3]


def taped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_archives_share_the_disk(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("archives")
    members = {path.name: path.read_bytes() for path in folder.iterdir()}
    first, second = place / "a.tar", place / "b.tar"
    first.write_bytes(taped(members))
    second.write_bytes(taped({"x.log": b"step\n" * MIB}))
    trace = load_trace([first, second], budget=budget(written=MIB))
    assert sorted(trace.ranks) == [0, 1]
    assert any("--max-unpacked" in u.why for u in trace.unread)


def test_a_member_that_inflates_without_end_is_left_out(folder: Path, tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("bomb.log", b"step\n" * (20 * MIB))
        for path in sorted(folder.iterdir()):
            made.writestr(path.name, path.read_bytes())
    path = tmp_path / "job.zip"
    path.write_bytes(out.getvalue())
    trace = load_trace([path], budget=budget())
    assert sorted(trace.ranks) == [0, 1]
    assert any("inflates more than any log" in u.why for u in trace.unread)


def test_files_not_begun_in_time_are_named(folder: Path) -> None:
    over = budget(seconds=0)
    with pytest.raises(Exception, match="--max-seconds") as said:
        load_trace([folder], budget=over)
    assert "0 s of reading are over" in str(said.value)


def test_the_default_is_what_the_machine_has() -> None:
    given = default_budget()
    assert given.memory_bytes > 64 * MIB
    assert 0 < given.written_bytes <= 8 * GIB
    assert default_budget(2, 3, 1).memory_bytes == 2 * GIB


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_unpacked_archive_goes_with_a_killed_process(tmp_path: Path, number: int) -> None:
    """Also if its whole process group is killed."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    code = (
        "import time; from hangscope.trace.loading.temporary import temporary_folder\n"
        "with temporary_folder() as folder:\n"
        "    open(folder + '/x', 'w').close(); print(folder, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "x").exists()
        os.killpg(process.pid, number)
        process.wait()
    for _ in range(200):
        if not list(temporary.iterdir()):
            break
        time.sleep(0.05)
    assert not list(temporary.iterdir())
