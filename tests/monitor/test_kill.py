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
from hangscope.trace.live.rings import RunKey
from hangscope.trace.processes.process import _own_namespace
from tests.live_rings import RingRank

Children = list[subprocess.Popen[bytes]]


def _deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@pytest.fixture
def mismatched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Children]:
    """Two live processes whose rings say that they issued different operations."""
    boot_id, namespace = _own_namespace() or ("", 0)
    first_acts = getattr(request, "param", (None, None))
    children = [subprocess.Popen(["sleep", "60"], preexec_fn=act) for act in first_acts]
    for rank, (child, op) in enumerate(zip(children, ("all_reduce", "broadcast"), strict=True)):
        stat = Path(f"/proc/{child.pid}/stat").read_bytes()
        start = int(stat.rsplit(b")", 1)[1].split()[19])
        ring = RingRank(
            tmp_path,
            rank,
            2,
            pid=child.pid,
            start_ticks=start,
            boot_id=boot_id,
            pid_namespace=namespace,
        )
        ring.issue(ring.join("0", "default_pg", range(2)), op)
    yield children
    for child in children:
        child.kill()
        child.wait()


@pytest.mark.parametrize("mismatched", [(None, _deaf)], indirect=True)
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
