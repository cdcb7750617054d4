"""Resources that the monitor uses on the machine of a training job."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil

from tests.real_jobs import beside, environment, worlds

_JOB = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
time.sleep(300)
"""


def test_monitor_starts_no_threads_for_linear_algebra(tmp_path: Path) -> None:
    (world,) = worlds(1)
    env = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(tmp_path), **world)
    env.pop("OPENBLAS_NUM_THREADS", None)
    with beside([sys.executable, "-c", _JOB], [env], tmp_path / "log"):
        deadline_s = time.monotonic() + 60
        monitor = None
        while time.monotonic() < deadline_s:
            monitor = _monitor_of(tmp_path)
            try:
                if monitor is not None and any("numpy" in m.path for m in monitor.memory_maps()):
                    break
            except psutil.NoSuchProcess:
                monitor = None  # it was the one that starts the monitor and ends
            time.sleep(0.1)
        else:
            raise AssertionError("no monitor that has loaded numpy")
        # While it is still importing, one thread of its own watches for ranks that end.
        while monitor.num_threads() > 1 and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert monitor.num_threads() == 1


def _monitor_of(directory: Path) -> psutil.Process | None:
    """The newest of its processes: the one that started it waits for it and imports nothing."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        words = process.info["cmdline"] or ()
        if "hangscope.monitor" in words and str(directory) in words:
            found.append(process)
    return max(found, key=lambda one: (one.info["create_time"], one.pid), default=None)
