"""An OOM kill by the kernel: SIGKILL from nowhere, and a counter of the cgroup.

Creating a cgroup takes privileges that a test should not need, so the counter's file is a stand-in
in the formats of both versions; the job, its death and the monitor are real.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from hangscope.monitor import processes
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.trace.load import load_trace
from tests.real_jobs import beside, worlds
from tests.recording.launcher import recording

JOB = """
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(2))
if dist.get_rank() == 1:
    with open(sys.argv[1], "w") as file:
        file.write(sys.argv[2])
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(2))
except RuntimeError:
    time.sleep(2)
    raise
"""
UNIFIED = "low 0\nhigh 0\nmax 12\noom {0}\noom_kill {0}\noom_group_kill 0\n"
LEGACY = "oom_kill_disable 0\nunder_oom 0\noom_kill {0}\n"


@pytest.mark.parametrize(
    ("events", "kills", "kind"),
    [
        pytest.param(UNIFIED, 3, "oom", id="v2"),
        pytest.param(LEGACY, 3, "oom", id="v1", marks=pytest.mark.slow),
        pytest.param(UNIFIED, 2, "signal", id="killed by somebody else"),
    ],
)
def test_oom_kill_is_distinguished_from_other_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: str, kills: int, kind: str
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text(events.format(2))
    monkeypatch.setattr(processes, "_memory_event_files", lambda: [tmp_path / "none", counter])
    run = tmp_path / "run"
    said = io.StringIO()
    monitor = Monitor(MonitorConfig(run, None, 2, timeout_s=20.0), out=said)
    command = [sys.executable, "-c", JOB, str(counter), events.format(kills)]
    with beside(command, [recording(run) | place for place in worlds(2)], tmp_path / "log"):
        diagnosis = monitor.follow()
    assert diagnosis is not None
    assert (diagnosis.verdict, diagnosis.culprits) == ("rank_crashed", (1,)), said.getvalue()
    end = load_trace([run]).ranks[1].exit
    assert (end.kind, end.signal) == (kind, 9)
    assert ("killed for memory" in said.getvalue()) == (kind == "oom"), said.getvalue()


def test_oom_counter_of_own_cgroup_is_read() -> None:
    """The files of this process's own cgroups; -1 if none can be read."""
    files = processes._memory_event_files()
    assert {path.parts[:4] for path in files} == {("/", "sys", "fs", "cgroup")}
    assert (processes.oom_kills() >= 0) == any(path.is_file() for path in files)
