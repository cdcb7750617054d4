"""``HANGSCOPE_ON_HANG=kill``: every monitor ends its own ranks, whichever of them reports."""

from __future__ import annotations

import io
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.monitor import local_ranks
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.trace.live.open_ring import RunKey
from tests.ring_processes import ring_process

Children = list[subprocess.Popen[bytes]]


@pytest.fixture
def mismatched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Children]:
    """Two live processes that write rings which say that they issued different operations."""
    first, second = getattr(request, "param", ("", ""))
    with (
        ring_process(tmp_path, 0, "all_reduce", first) as one,
        ring_process(tmp_path, 1, "broadcast", second) as other,
    ):
        yield [one, other]


@pytest.mark.parametrize("mismatched", [("", "deaf")], indirect=True)
def test_kill_ends_stopped_and_signal_ignoring_ranks(
    tmp_path: Path, mismatched: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ranks, "KILL_GRACE_S", 0.5)
    mismatched[0].send_signal(signal.SIGSTOP)
    config = MonitorConfig(tmp_path, RunKey("live", 0), 2, timeout_s=30.0, on_hang="kill")
    Monitor(config, out=io.StringIO()).follow()
    assert [child.wait(10) for child in mismatched] == [-signal.SIGTERM, -signal.SIGKILL]


def test_monitor_kills_its_ranks_if_another_has_reported(
    tmp_path: Path, mismatched: Children
) -> None:
    first, second = io.StringIO(), io.StringIO()
    key = RunKey("live", 0)
    Monitor(
        MonitorConfig(tmp_path, key, 2, timeout_s=30.0),
        out=first,
        keep_going=lambda: "[hangscope] more:" not in first.getvalue(),
    ).follow()
    assert [child.poll() for child in mismatched] == [None, None]
    Monitor(MonitorConfig(tmp_path, key, 2, timeout_s=30.0, on_hang="kill"), out=second).follow()
    assert [child.wait(10) for child in mismatched] == [-signal.SIGTERM] * 2
    assert "[hangscope] more:" not in second.getvalue(), "one voice a cause"
    assert "HANGSCOPE_ON_HANG=kill: ending the job" in second.getvalue()
