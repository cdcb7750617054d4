"""Whether programs that the ranks wait for are busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hangscope.monitor import helper_processes
from hangscope.monitor.helper_processes import HelperProcesses

RANK = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def judged(program: str) -> list[bool]:
    """What is said of a process that only waits for another one, which runs ``program`` once it
    has said that it has begun."""
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, program], stdout=subprocess.PIPE, start_new_session=True
    )
    assert rank.stdout is not None
    try:
        assert rank.stdout.readline() == b"begun\n"
        found = HelperProcesses()
        # The least that counts: where much else runs, a compiler gets no fifth of a core.
        said = [found.are_busy([rank.pid], least=helper_processes.BARELY_BUSY)]
        time.sleep(2 * helper_processes.MIN_INTERVAL_S)
        return [*said, found.are_busy([rank.pid], least=helper_processes.BARELY_BUSY)]
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.communicate()


def test_compiler_is_busy_and_sleeper_is_not() -> None:
    assert judged("print('begun', flush=True)\nwhile True: pass") == [True, True]
    assert judged("import time; print('begun', flush=True); time.sleep(60)") == [True, False]


def stat(proc: Path, pid: int, parent: int, own: int, ended: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    rest = f"S {parent} 1 1 0 -1 0 0 0 0 0 {own} 0 {ended} 0 20 0 1 0 77"
    (proc / str(pid) / "stat").write_text(f"{pid} (a name) with ) {rest}\n")


def test_reaped_children_count_and_ranks_do_not(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    stat(tmp_path, 10, 1, own=100, ended=0)
    stat(tmp_path, 11, 10, own=100, ended=0)  # a rank that another rank started
    stat(tmp_path, 12, 11, own=5, ended=0)
    stat(tmp_path, 13, 1, own=5, ended=0)
    found = HelperProcesses(tmp_path)
    assert found._used({10, 11}) == 5
    (tmp_path / "12" / "stat").unlink()
    stat(tmp_path, 11, 10, own=900, ended=40)
    assert found._used({10, 11}) == 40
    assert found._used({99}) == 0


@pytest.mark.parametrize(
    ("passed_s", "used_ticks", "are_busy"),
    [
        (10.0, 201, True),
        (10.0, 200, False),
        (helper_processes.MIN_INTERVAL_S, 0, False),
        (helper_processes.MIN_INTERVAL_S - 0.1, 0, True),  # too early to tell
    ],
)
def test_a_fifth_of_a_core_is_busy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passed_s: float,
    used_ticks: int,
    are_busy: bool,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(helper_processes, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(helper_processes, "TICKS_PER_SECOND", 100)
    stat(tmp_path, 10, 1, own=0, ended=0)
    stat(tmp_path, 11, 10, own=50, ended=0)
    found = HelperProcesses(tmp_path)
    assert found.are_busy([10])
    now_s += passed_s
    stat(tmp_path, 11, 10, own=50 + used_ticks, ended=0)
    assert found.are_busy([10]) is are_busy
