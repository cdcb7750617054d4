"""Seeing how a process ends without being its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from hangscope.monitor.processes import ProcessEnd, ProcessWatch


def end_of(code: str, kill: int | None = None) -> ProcessEnd:
    """Run a grandchild that its own parent reaps at once, and watch it end."""
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys\n"
            f"child = subprocess.Popen([sys.executable, '-c', {code!r}])\n"
            "print(child.pid, flush=True)\n"
            "child.wait()",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    watch = ProcessWatch()
    assert watch.add(5, pid)
    assert watch.alive == 1
    if kill is not None:
        time.sleep(0.2)
        os.kill(pid, kill)
    ends = watch.wait(20.0)
    parent.wait(20)
    parent.stdout.close()
    assert watch.alive == 0
    return ends[0]


def test_an_exit_status_is_seen() -> None:
    end = end_of("import time, os; time.sleep(0.5); os._exit(3)")
    assert (end.rank, end.code, end.signal) == (5, 3, None)


def test_a_clean_exit_is_seen() -> None:
    assert end_of("import time; time.sleep(0.5)").code == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_fatal_signal_is_seen(number: signal.Signals) -> None:
    assert end_of("import time; time.sleep(60)", number).signal == number


def test_a_process_that_is_gone_cannot_be_watched() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not ProcessWatch().add(0, process.pid)
