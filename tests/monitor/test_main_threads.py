"""Whether the kernel has run a process's main thread between two looks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.monitor.main_threads import MainThreads
from hangscope.trace.model import Frame, RankFacts, ThreadStack
from tests.waiting import until

ONE_CALL = "import threading; print(1, flush=True); threading.Event().wait()"
MANY_CALLS = "import time; print(1, flush=True)\nwhile True: time.sleep(0.02)"


@pytest.mark.parametrize(("code", "runs"), [(ONE_CALL, False), (MANY_CALLS, True)])
def test_one_long_call_differs_from_many_short_ones(code: str, runs: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            threads = MainThreads()
            assert threads.ran([process.pid])  # nothing to compare with yet
            # The call may not have begun yet, and a busy machine may run none of many calls.
            time.sleep(0.3)
            until(lambda: threads.ran([process.pid]) is runs, every_s=0.3)
        finally:
            process.kill()


def test_unreadable_thread_counts_as_running(tmp_path: Path) -> None:
    threads = MainThreads(tmp_path)
    assert threads.ran([1])
    assert threads.ran([1])
    assert threads.ran([])
    status = tmp_path / "1" / "task" / "1" / "status"
    status.parent.mkdir(parents=True)
    status.write_text("Name:\tpython\n")
    assert threads.ran([1])
    assert threads.ran([1]), "its status does not tell"
    status.write_text("voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t1\n")
    assert threads.ran([1])
    assert not threads.ran([1])


def test_polling_loop_is_no_progress() -> None:
    """A build lock: a thread checks ten times a second whether it is gone."""
    threads, pid = MainThreads(), os.getpid()
    asks = Frame("wait", "/x/site-packages/torch/utils/file_baton.py", 50)
    mine = Frame("build", "/home/me/train.py", 7)

    def rank(number: int, *stack: Frame) -> RankFacts:
        main = ThreadStack("MainThread", True, stack)
        return RankFacts(number, pid=pid, alive=True, threads=(main,))

    assert not threads.any_progressed([rank(0, asks, mine), rank(1, asks, mine)])
    assert threads.any_progressed(
        [rank(0, asks, mine), rank(1, mine)]
    )  # nothing to compare with yet
