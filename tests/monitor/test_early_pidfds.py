"""pidfds opened while the monitor imports: even a reaped rank has an exit status."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.monitor import early_pidfds, processes
from hangscope.monitor.early_pidfds import EarlyWatch, pid_of
from hangscope.monitor.processes import ProcessWatch
from hangscope.ring import layout
from tests.waiting import until


def _ring(directory: Path, pid: int, rank: int = 0) -> Path:
    path = directory / f"rank_{rank}.ring"
    head = bytearray(layout.HEADER_BYTES)
    head[: len(layout.MAGIC)] = layout.MAGIC
    struct.pack_into("<i", head, early_pidfds.PID_OFFSET, pid)
    path.write_bytes(head)
    return path


def test_pid_offset_matches_the_layout() -> None:
    dtype, offset = layout.HEADER.fields["pid"][:2]
    assert (offset, dtype.itemsize) == (early_pidfds.PID_OFFSET, early_pidfds.PID.size)
    assert early_pidfds.MAGIC == layout.MAGIC


def test_numpy_is_not_imported() -> None:
    code = "import hangscope.monitor.early_pidfds, sys; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("content", [b"", b"HSRING\x00\x01", b"x" * 4096])
def test_other_files_have_no_pid(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank_0.ring"
    path.write_bytes(content)
    assert pid_of(str(path)) == 0
    assert pid_of(str(tmp_path / "gone.ring")) == 0


def test_end_of_a_process_reaped_before_it_was_added(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    _ring(tmp_path, process.pid)
    watch = EarlyWatch(tmp_path)
    until(lambda: watch._descriptors, every_s=0.01)
    before_ns = time.time_ns()
    process.kill()
    process.wait()  # from here on /proc knows nothing of it
    until(lambda: watch._ended_ns, every_s=0.01)
    noticed_ns = time.time_ns()
    ends = ProcessWatch(*watch.take())
    assert ends.add(0, process.pid)
    (end,) = ends.wait(5.0)
    assert before_ns <= end.at_ns <= noticed_ns
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15):
        assert end.signal == 9


def test_directory_may_not_exist_yet(tmp_path: Path) -> None:
    watch = EarlyWatch(tmp_path / "later")
    time.sleep(0.1)
    assert watch.take()[:2] == ({}, {})


def test_oom_kills_before_the_first_look_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 2\n")
    monkeypatch.setattr(processes, "_memory_event_files", lambda: [counter])
    watch = EarlyWatch(tmp_path)
    counter.write_text("oom_kill 3\n")
    assert ProcessWatch(*watch.take()).were_killed_for_memory()
    assert not ProcessWatch().were_killed_for_memory()
