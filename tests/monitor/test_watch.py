"""The monitor's loop over real processes, whose rings the tests write."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hangscope.diagnosis.model import Verdict
from hangscope.monitor import doubled_ranks, watch
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.ring.process_identity import boot_id, pid_namespace, start_ticks
from hangscope.trace.live.rings import RunKey
from tests.live_rings import RingRank

_KEY = RunKey("live", 0)
_LIMIT_S = 60.0


class _Followed:
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

    def follow(self, key: RunKey | None = _KEY) -> Monitor:
        """Let a monitor follow in another thread."""
        config = MonitorConfig(self.folder, key, local_world_size=2, timeout_s=2.0)
        monitor = Monitor(config, out=self.out, keep_going=lambda: self.going)
        self._following = threading.Thread(target=monitor.follow)
        self._following.start()
        return monitor

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the monitor does."""
        deadline_s = time.monotonic() + _LIMIT_S
        while not holds() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert holds(), self.out.getvalue()

    def end(self, *, ask: bool) -> None:
        """Wait for the monitor to end by itself, or ``ask`` it to."""
        self.going = not ask
        if self._following is not None:
            self._following.join(timeout=_LIMIT_S)
            assert not self._following.is_alive()


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[_Followed]:
    found = _Followed(tmp_path)
    yield found
    found.end(ask=True)
    for process in found.processes:
        process.kill()
        process.wait()


def test_monitor_gives_up_if_no_rank_shows_up(
    followed: _Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "NO_RANKS_S", 0.2)
    monitor = followed.follow()
    followed.end(ask=False)
    assert monitor.last is None
    assert followed.out.getvalue() == ""


def test_two_processes_of_one_rank_are_reported_once_after_a_moment(
    followed: _Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubled_ranks, "DOUBLED_S", 0.5)
    followed.ring(0, process=0)
    (followed.folder / "rank_0.ring").rename(followed.folder / "rank_0.live.0.ring")
    first = time.monotonic()
    followed.ring(0, process=1)
    followed.follow()
    followed.until(lambda: "two processes are rank 0" in followed.out.getvalue())
    assert time.monotonic() - first >= 0.5
    time.sleep(1.0)
    assert followed.out.getvalue().count("two processes are rank 0") == 1


def test_pause_and_its_end_are_reported_once_each(followed: _Followed) -> None:
    ranks = [followed.ring(rank, process=rank) for rank in range(2)]
    groups = [rank.join("0", "default_pg", range(2)) for rank in ranks]
    waiting = ranks[0].issue(groups[0])
    followed.follow()
    followed.until(lambda: "Rank 1 never joined all_reduce #1" in followed.out.getvalue())
    assert "moving again" not in followed.out.getvalue()
    late = ranks[1].issue(groups[1])
    ranks[0].finish(waiting)
    ranks[1].finish(late)
    followed.until(lambda: "moving again after" in followed.out.getvalue())
    time.sleep(1.0)
    assert followed.out.getvalue().count("moving again") == 1


def test_nothing_is_printed_about_ranks_that_end_well(followed: _Followed) -> None:
    for rank in range(2):
        ring = followed.ring(rank, process=rank)
        group = ring.join("0", "default_pg", range(2))
        ring.finish(ring.issue(group))
        ring.ring.put_u4("initialized", 0)
        ring.ring.put_u4("finalized", 1)
    monitor = followed.follow()
    followed.until(lambda: bool(monitor._ranks.alive))
    for process in followed.processes:
        process.kill()
        process.wait()
    followed.end(ask=False)
    assert monitor.last is not None
    assert monitor.last.verdict is Verdict.HEALTHY
    assert followed.out.getvalue() == ""
