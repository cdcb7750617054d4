"""What goes wrong in the monitor costs one line; the watch goes on."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hangscope.monitor import job_view, mishaps, watch
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.trace.live.open_ring import RunKey
from tests.real_jobs import environment
from tests.ring_processes import ring_process
from tests.waiting import until


def test_failed_look_is_one_line_and_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, diagnose = 0, job_view.diagnose

    def sometimes(trace: object) -> object:
        nonlocal looks
        looks += 1
        if looks <= 3:
            raise IndexError("tuple index out of range")
        return diagnose(trace)

    monkeypatch.setattr(job_view, "diagnose", sometimes)
    out = io.StringIO()
    with ring_process(tmp_path, 0), ring_process(tmp_path, 1, "broadcast"):
        Monitor(
            MonitorConfig(tmp_path, RunKey("live", 0), 2, timeout_s=2.0),
            out=out,
            keep_going=lambda: "more: hangscope" not in out.getvalue(),
        ).follow()
    lines = [line for line in out.getvalue().splitlines() if "a look at the job failed" in line]
    assert len(lines) == 1
    assert "IndexError (test_mishaps.py:" in lines[0]
    assert "broadcast" in out.getvalue(), "the verdict came"


def test_watch_that_always_fails_ends_with_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Monitor) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(watch, "MOST_IN_SUCCESSION", 3)
    monkeypatch.setattr(mishaps, "PAUSE_S", 0.01)
    monkeypatch.setattr(Monitor, "_discover", fails)
    out = io.StringIO()
    assert Monitor(MonitorConfig(tmp_path, None, 2, timeout_s=2.0), out=out).follow() is None
    assert out.getvalue().count("\n") == 1


def _monitors(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if "hangscope.monitor" in words and str(directory) in words:
            found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def test_killed_monitor_is_started_again_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = tmp_path / "run"
    run.mkdir()
    with ring_process(run, 0), ring_process(run, 1), log.open("w") as out:
        command = [sys.executable, "-m", "hangscope.monitor", "--directory", str(run)]
        command += ["--run-id", "live", "--local-world-size", "2", "--timeout", "2", "--detach"]
        subprocess.run(command, env=environment(), stderr=out, check=True, timeout=60)
        for times, consequence in ((1, "it is started again"), (2, "nobody watches the job now")):
            until(lambda: len(_monitors(run)) == 2)
            _monitors(run)[-1].send_signal(signal.SIGKILL)
            until(lambda: consequence in log.read_text())  # noqa: B023
            assert log.read_text().count("the monitor was killed by signal 9") == times
        until(lambda: not _monitors(run))
