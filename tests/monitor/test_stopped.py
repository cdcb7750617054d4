"""Ranks that get a stop signal: on all nodes of a directory at once, or only on this one."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hangscope.monitor import watch
from hangscope.monitor.processes import ProcessWatch
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.ring.process_identity import boot_id, pid_namespace, start_ticks
from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.processes.process import look_here
from tests.live_rings import RingRank
from tests.waiting import until

_SLEEPS = "import time; print(flush=True); time.sleep(60)"
_FIRST_THREAD_ENDS = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print(flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit of one thread, on x86-64
"""


def _started(code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _ended_elsewhere(folder: Path, rank: int, pid: int, number: int) -> None:
    """Write what the monitor of another node would write."""
    head = {"hangscope": "journal/1", "run_id": "live", "attempt": 0, "host": "node1"}
    end = {"event": "exit", "rank": rank, "pid": pid, "at_ns": time.time_ns(), "signal": number}
    (folder / "monitor_node1.live.0.9.journal").write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (head, end))
    )


@pytest.mark.parametrize(
    ("number", "others"),
    [
        (signal.SIGTERM, "stop, too"),
        (signal.SIGUSR1, "stop, too"),  # a scheduler's warning
        (signal.SIGTERM, "go on"),
    ],
)
def test_node_waits_for_others_before_reporting_its_stopped_ranks(
    number: signal.Signals, others: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STOPPED_S", 20.0 if others == "stop, too" else 0.5)
    out, process = io.StringIO(), _started(_SLEEPS)
    own = {"boot_id": boot_id(), "pid_namespace": pid_namespace()}
    here = RingRank(tmp_path, 0, 2, pid=process.pid, start_ticks=start_ticks(process.pid), **own)
    there = RingRank(tmp_path, 1, 2, pid=1, boot_id="another", pid_namespace=7)
    group = there.join("0", "default_pg", range(2))
    here.join("0", "default_pg", range(2))
    there.issue(group)
    config = MonitorConfig(tmp_path, RunKey("live", 0), local_world_size=1, timeout_s=30.0)
    monitor = Monitor(config, out=out)
    following = threading.Thread(target=monitor.follow)
    following.start()
    until(lambda: monitor._ranks.alive)
    process.send_signal(number)
    process.wait()
    until(lambda: monitor._ranks.were_stopped)
    time.sleep(0.1)
    there.ring.beat()
    if others == "stop, too":
        _ended_elsewhere(tmp_path, 1, 1, number)
    following.join(timeout=20)
    assert not following.is_alive()
    assert ("Rank 0 crashed: killed by SIGTERM" in out.getvalue()) == (others == "go on")
    assert out.getvalue() == "" or others == "go on"


@pytest.mark.skipif(sys.platform != "linux", reason="threads that end alone")
def test_process_without_its_main_thread_has_not_ended() -> None:
    process, processes = _started(_FIRST_THREAD_ENDS), ProcessWatch()
    assert processes.add(0, process.pid)
    try:
        until(lambda: look_here(process.pid, 0).alive is False)
        assert processes.watches(process.pid), "how it ends cannot be seen yet"
    finally:
        process.kill()
    (end,) = processes.wait(20.0)
    assert (end.signal, processes.watches(process.pid)) == (9, False)
    process.wait()
