"""A monitor over real processes, whose rings the tests write."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hangscope.monitor.config import MonitorConfig
from hangscope.monitor.watch import Monitor
from hangscope.ring.process_identity import boot_id, pid_namespace, start_ticks
from hangscope.trace.live.open_ring import RunKey
from tests.live_rings import RingRank
from tests.waiting import until

KEY = RunKey("live", 0)
_LIMIT_S = 60.0


class Followed:
    """Two processes, the rings that a test gives them, and a monitor that follows these."""

    def __init__(self, folder: Path) -> None:
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        self.processes = [subprocess.Popen(sleep) for _ in range(2)]
        self.folder = folder
        self.out = io.StringIO()
        self.going = True
        self._following: threading.Thread | None = None

    def ring(self, rank: int, process: int) -> RingRank:
        """A ring of one of the processes."""
        pid = self.processes[process].pid
        return RingRank(
            self.folder,
            rank,
            2,
            pid=pid,
            start_ticks=start_ticks(pid),
            boot_id=boot_id(),
            pid_namespace=pid_namespace(),
            timeout_s=2.0,
        )

    def follow(self, key: RunKey | None = KEY) -> Monitor:
        """Let a monitor follow in another thread."""
        config = MonitorConfig(self.folder, key, local_world_size=2, timeout_s=2.0)
        monitor = Monitor(config, out=self.out, keep_going=lambda: self.going)
        self._following = threading.Thread(target=monitor.follow)
        self._following.start()
        return monitor

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the monitor does."""
        until(holds, _LIMIT_S, every_s=0.02, seen=self.out.getvalue)

    def end(self, *, ask: bool) -> None:
        """Wait for the monitor to end by itself, or ``ask`` it to."""
        self.going = not ask
        if self._following is not None:
            self._following.join(timeout=_LIMIT_S)
            assert not self._following.is_alive()


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    found = Followed(tmp_path)
    yield found
    found.end(ask=True)
    for process in found.processes:
        process.kill()
        process.wait()
