"""The machine's clock is set while a job runs."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hangscope.monitor import watch
from hangscope.monitor.clock_steps import ClockSteps
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.ring.process_identity import boot_id, pid_namespace, start_ticks
from hangscope.trace.live.open_ring import RunKey
from tests.live_rings import RingRank
from tests.waiting import until


@pytest.mark.parametrize("by_s", [3600.0, -3600.0, 5.0])
def test_clock_step_is_reported_for_the_requested_time(by_s: float) -> None:
    now_s, set_s = [100.0], [0.0]
    steps = ClockSteps(lambda: 1e9 + now_s[0] + set_s[0], lambda: now_s[0])
    assert not steps.within(120.0)
    now_s[0] += 10.0
    set_s[0] = by_s
    assert steps.within(120.0)
    now_s[0] += 119.0
    assert steps.within(120.0)
    now_s[0] += 2.0
    assert not steps.within(120.0)


def test_slewed_clock_is_not_a_step() -> None:
    now_s, set_s = [100.0], [0.0]
    steps = ClockSteps(lambda: 1e9 + now_s[0] + set_s[0], lambda: now_s[0])
    for _ in range(1000):
        now_s[0] += 5.0
        set_s[0] += 0.0025
        assert not steps.within(120.0)


def test_delay_between_reading_the_clocks_is_not_a_step() -> None:
    """The process is preempted just then."""
    now_s, busy_s = [100.0], [0.0]

    def monotonic() -> float:
        now_s[0] += busy_s[0]
        return now_s[0]

    steps = ClockSteps(lambda: 1e9 + now_s[0], monotonic)
    busy_s[0] = 3.0
    assert not steps.within(120.0)
    busy_s[0] = 0.0
    assert not steps.within(120.0)


def test_clock_step_does_not_make_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records look like a hang of two seconds, which the monitor must not report."""
    asked, lately, going = [0], threading.Event(), threading.Event()
    lately.set()

    class Steps:
        def within(self, seconds: float) -> bool:
            asked[0] += 1
            return lately.is_set()

    monkeypatch.setattr(watch, "ClockSteps", Steps)
    sleep = [sys.executable, "-c", "import time; time.sleep(120)"]
    processes = [subprocess.Popen(sleep) for _ in range(2)]
    own = {"boot_id": boot_id(), "pid_namespace": pid_namespace(), "timeout_s": 2.0}
    ranks = [
        RingRank(tmp_path, rank, 2, pid=p.pid, start_ticks=start_ticks(p.pid), **own)
        for rank, p in enumerate(processes)
    ]
    groups = [rank.join("0", "default_pg", range(2)) for rank in ranks]
    ranks[0].issue(groups[0])
    config = MonitorConfig(tmp_path, RunKey("live", 0), local_world_size=2, timeout_s=2.0)
    out = io.StringIO()
    following = threading.Thread(
        target=Monitor(config, out=out, keep_going=lambda: not going.is_set()).follow
    )
    following.start()
    try:
        until(lambda: asked[0] >= 5)
        assert out.getvalue() == ""
        lately.clear()
        until(lambda: "[hangscope] Rank 1 never" in out.getvalue())
    finally:
        going.set()
        for process in processes:
            process.kill()
            process.wait()
        following.join()
