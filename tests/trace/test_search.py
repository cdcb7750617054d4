"""Which files below a path are read, and what is reported for a path that is not a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangscope.ring.writer import RingIdentity, RingWriter
from hangscope.trace.load import NothingReadable, load_trace
from hangscope.trace.loading import search
from hangscope.trace.model import Unread
from tests.trace.logs import timeout


def _names(folder: Path) -> list[str]:
    unread: list[Unread] = []
    found = [os.path.relpath(path, folder) for path, _ in search.files_below(str(folder), unread)]
    assert unread == []
    return found


def test_unrelated_files_are_skipped(tmp_path: Path) -> None:
    for name in (
        "rank_10.ring", "rank_9.ring", "logs/rank3/stderr", ".hidden", ".git/log", "train.py",
        "node_modules/a.txt", "x.so", "expected.toml", "proc/1/status",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert _names(tmp_path) == [
        "rank_9.ring", "rank_10.ring", "logs/rank3/stderr", "proc/1/status",
    ]  # fmt: skip


def test_kernel_file_systems_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dev/kmsg", "scratch/dev/job.log"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x")
    mounted = str(tmp_path / "dev")
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == mounted)
    assert _names(tmp_path) == ["scratch/dev/job.log"]


def test_disk_is_not_searched_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_UNRELATED", 50)
    run = tmp_path / "a" / "run"
    run.mkdir(parents=True)
    RingWriter(run / "rank_0.ring", RingIdentity("job", 0, 1, pid=1), 16, group_count=8)
    for rank in range(60):  # as many logs as there may be ranks
        (run / f"rank_{rank}.log").write_text(timeout(rank, 7))
        (run / f"part_{rank}.distcp").write_bytes(bytes(99))
    assert len(load_trace([tmp_path]).ranks) == 60, "parts of checkpoints are not searched"
    for number in range(51):
        (tmp_path / f"notes_{number}.md").write_text("nothing of a job\n")
    with pytest.raises(NothingReadable, match=r"files and more .*; give the folder of the run"):
        load_trace([tmp_path])
    (tmp_path / "a").rename(tmp_path / "0")  # now it is come upon
    (run := tmp_path / "0" / "run").joinpath("rank_0.ring").rename(tmp_path / "0" / "rank_0.ring")
    for number in range(51):
        (tmp_path / f"notes_{number}.md").rename(run / f"notes_{number}.md")
    with pytest.raises(NothingReadable, match=f"of the run, such as {tmp_path / '0'}"):
        load_trace([tmp_path])
