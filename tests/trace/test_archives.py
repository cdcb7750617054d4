"""Compressed files, and archives of a job's files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.files.compression import (
    BZIP2,
    GZIP,
    XZ,
    compress,
    compression_of,
    open_decompressed,
)
from hangscope.trace.load import NothingReadable, load_trace
from hangscope.trace.loading.budget import Budget

from .dumps import dump, entry
from .logs import timeout

WAITS = "".join(timeout(rank, 7) for rank in (0, 1, 3)).encode()
STEPS = b"".join(b"step %d loss %d\n" % (i, i * 7919 % 10007) for i in range(20_000))
JOB = {
    **{f"job/attempt_0/{r}/stderr.log": timeout(r, 7).encode() for r in (0, 1, 3)},
    "job/model.bin": bytes(range(256)) * 40,
    "job/train.py": b"raise ValueError('is no log')\n",
}


def tar(mode: str) -> Callable[[Mapping[str, bytes]], bytes]:
    def packed(files: Mapping[str, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(data), 1_755_000_000
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()

    return packed


def zipped(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    packed: bytes = pytest.importorskip("zstandard").compress(data)
    return packed


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_compressed_log_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "job.log.packed").write_bytes(pack(STEPS + WAITS))
    assert diagnose(load_trace([tmp_path])).culprits == (2,)


@pytest.mark.parametrize("packing", [GZIP, BZIP2, XZ])
def test_repacked_file_keeps_its_compression(tmp_path: Path, packing: str) -> None:
    """A redacted file keeps its name, which says how it is compressed."""
    data = compress(STEPS, packing)
    assert compression_of(data) == packing
    assert data == compress(STEPS, packing)
    (tmp_path / "job.log").write_bytes(data)
    with open_decompressed(tmp_path / "job.log", packing) as stream:
        assert stream.read() == STEPS


@pytest.mark.long
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_truncated_file_is_read_as_far_as_possible(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """A rank that is silent may have spoken in the part that is lost."""
    more = b"".join(bytes(f"{i * 7919 % 100_003} {i}\n", "ascii") for i in range(300_000))
    path = tmp_path / "job.log.packed"
    path.write_bytes(pack(WAITS + more)[:-2000])
    found = diagnose(load_trace([path]))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert found.summary.startswith("Ranks 0, 1, 3 wait in all_reduce #7")


@pytest.mark.parametrize("pack", [tar("w"), tar("w:gz"), tar("w:xz"), zipped])
def test_archive_is_read_like_a_folder(
    tmp_path: Path, pack: Callable[[Mapping[str, bytes]], bytes]
) -> None:
    path = tmp_path / "job.packed"
    path.write_bytes(pack(JOB))
    trace = load_trace([path])
    assert diagnose(trace).culprits == (2,)
    assert trace.sources[0].path == f"{path}/job/attempt_0/0/stderr.log"
    assert [u.path for u in trace.unread] == [f"{path}/job/model.bin"]


def test_archive_may_contain_dumps_and_files_keep_their_dates(tmp_path: Path) -> None:
    stack = b'Thread 0x7f22 (idle): "MainThread"\n    read (data.py:12)\n'
    files = {"d/trace_rank_3": pickle.dumps(dump([entry(1)], 3)), "d/stack_rank_1.txt": stack}
    path = tmp_path / "dumps.tar.gz"
    path.write_bytes(tar("w:gz")(files))
    ranks = load_trace([path]).ranks
    assert list(ranks) == [1, 3]
    assert ranks[1].threads[0].sampled_ns == 1_755_000_000 * 10**9


@pytest.mark.parametrize("pack", [tar("w"), zipped])
def test_archive_writes_nothing_outside_its_folder_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[Mapping[str, bytes]], bytes]
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    path = tmp_path / "job.packed"
    path.write_bytes(pack({"../../escaped.log": WAITS, "/absolute.log": b"step 1\n"}))
    assert diagnose(load_trace([path])).culprits == (2,)
    assert not list(folder.iterdir())
    assert {name for _, _, names in os.walk(tmp_path) for name in names} == {"job.packed"}


def test_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.log").write_bytes(WAITS)
    path = tmp_path / "job.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("job.log")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.log")
        archive.addfile(link)
    with pytest.raises(NothingReadable):
        load_trace([path])


@pytest.mark.parametrize("pack", [tar("w"), zipped])
@pytest.mark.parametrize(
    "names", [("job", "job/b.log"), ("a/b/c.log", "a/b"), ("x" * 300 + ".log", "b.log")]
)
def test_archive_member_that_cannot_be_written_is_skipped(
    tmp_path: Path, pack: Callable[[Mapping[str, bytes]], bytes], names: tuple[str, str]
) -> None:
    """A file in place of a folder, a folder in place of a file, names that are too long."""
    bad = max(range(2), key=lambda index: (len(names[index]) > 255, index))
    path = tmp_path / "job.packed"
    path.write_bytes(
        pack({name: b"step 1\n" if i == bad else WAITS for i, name in enumerate(names)})
    )
    trace = load_trace([path])
    assert diagnose(trace).culprits == (2,)
    assert [u.why for u in trace.unread if "cannot be unpacked" in u.why]


@pytest.mark.parametrize("when", [10**30, -(10**12)])
def test_impossible_date_in_a_tar_is_ignored(tmp_path: Path, when: int) -> None:
    path = tmp_path / "job.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.log")
        info.size, info.mtime = len(WAITS), when
        archive.addfile(info, io.BytesIO(WAITS))
    assert diagnose(load_trace([path])).culprits == (2,)


def _patched_zip(local: int, value: bytes) -> bytes:
    """A zip of one member, with something else at this offset of both its headers."""
    packed = bytearray(zipped({"a.log": WAITS}))
    for magic, at in ((b"PK\x03\x04", local), (b"PK\x01\x02", local + 2)):
        start = packed.find(magic) + at
        packed[start : start + len(value)] = value
    return bytes(packed)


def test_impossible_date_in_a_zip_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    path.write_bytes(_patched_zip(10, bytes(4)))
    assert diagnose(load_trace([path])).culprits == (2,)


def test_member_without_a_name_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    path.write_bytes(zipped({"Qx": b"nothing", "a.log": WAITS}).replace(b"Qx", b"\0x"))
    assert diagnose(load_trace([path])).verdict.value != "healthy"


def test_encrypted_archive_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    path.write_bytes(_patched_zip(6, b"\x01"))
    with pytest.raises(NothingReadable, match="encrypted"):
        load_trace([path])


def test_decompression_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    path.write_bytes(zipped({"bomb.log": b"step\n" * (1 << 20)}))
    with pytest.raises(NothingReadable, match="more than may be written"):
        load_trace([path], budget=Budget(1 << 30, 60, written_bytes=1 << 20))


def test_truncated_archive_gives_its_first_members(tmp_path: Path) -> None:
    packed = tar("w")({"a.log": WAITS, "b.log": STEPS})
    path = tmp_path / "job.tar"
    path.write_bytes(packed[: len(packed) // 2])
    trace = load_trace([path])
    assert diagnose(trace).culprits == (2,)
    assert any("damaged or truncated" in u.why for u in trace.unread)


def test_archives_in_a_folder_are_ignored(tmp_path: Path) -> None:
    """Checkpoints and data sets are archives, too."""
    (tmp_path / "model.pt").write_bytes(zipped(JOB))
    (tmp_path / "job.log").write_bytes(WAITS)
    trace = load_trace([tmp_path])
    assert len(trace.sources) == 1
    assert "name it on the command line" in trace.unread[0].why
    assert len(load_trace([tmp_path, tmp_path / "model.pt"]).sources) == 4
