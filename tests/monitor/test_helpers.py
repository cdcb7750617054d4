"""Programs that the ranks wait for: at work or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hangscope.monitor import helpers
from hangscope.monitor.helpers import Helpers

RANK = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def judged(program: str) -> list[bool]:
    """What is said of a process that only waits for another one, which runs ``program``."""
    rank = subprocess.Popen([sys.executable, "-c", RANK, program], start_new_session=True)
    try:
        time.sleep(1.0)  # both interpreters have started
        found = Helpers()
        said = [found.at_work([rank.pid])]
        time.sleep(2 * helpers.COMPARABLE_S)
        return [*said, found.at_work([rank.pid])]
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


def test_a_compiler_is_at_work_and_a_sleeper_is_not() -> None:
    assert judged("while True: pass") == [True, True]
    assert judged("import time; time.sleep(60)") == [True, False]


def stat(proc: Path, pid: int, parent: int, own: int, ended: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    rest = f"S {parent} 1 1 0 -1 0 0 0 0 0 {own} 0 {ended} 0 20 0 1"
    (proc / str(pid) / "stat").write_text(f"{pid} (a name) with ) {rest}\n")


def test_what_has_ended_counts_and_what_the_ranks_use_does_not(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    stat(tmp_path, 10, 1, own=100, ended=0)
    stat(tmp_path, 11, 10, own=100, ended=0)  # a rank that another rank started
    stat(tmp_path, 12, 11, own=5, ended=0)
    stat(tmp_path, 13, 1, own=5, ended=0)
    found = Helpers(tmp_path)
    assert found._used({10, 11}) == 5
    (tmp_path / "12" / "stat").unlink()
    stat(tmp_path, 11, 10, own=900, ended=40)
    assert found._used({10, 11}) == 40
    assert found._used({99}) == 0
