"""What a monitor may not observe has not ended: real restrictions on real monitors."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real_jobs import environment
from tests.restrictions import NUMBERS, forbidding
from tests.ring_processes import ring_process
from tests.waiting import until

_PTRACE = ("ptrace", "process_vm_readv")
_PIDFDS = ("pidfd_open", "pidfd_send_signal", *_PTRACE)
_UNSHARE = shutil.which("unshare")


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (14, 14))


def _ulimit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def _seccomp(*calls: str, error: int) -> Callable[[], None]:
    if not NUMBERS:
        return lambda: None
    return forbidding(*calls, error=error)


RESTRICTIONS = {
    "pidfd_open: EPERM": _seccomp(*_PIDFDS, error=errno.EPERM),
    "pidfd_open: ENOSYS": _seccomp(*_PIDFDS, error=errno.ENOSYS),
    "ulimit -n 64": _ulimit,
    "no descriptor left": _few_descriptors,
}
NAMES = [
    "pidfd_open: EPERM",
    pytest.param("pidfd_open: ENOSYS", marks=pytest.mark.slow),
    pytest.param("ulimit -n 64", marks=pytest.mark.slow),
    "no descriptor left",
]


def _monitor(
    folder: Path, log: Path, apply: Callable[[], None], *, inside: str = "", kill: bool = False
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hangscope.monitor", "--directory", str(folder)]
    command += ["--run-id", "live", "--local-world-size", "2", "--timeout", "2"]
    command += ["--on-hang", "kill"] if kill else []
    if inside:
        command = [
            str(_UNSHARE),
            "-m",
            "sh",
            "-c",
            f'{inside} || exit 77; exec "$@"',
            "sh",
            *command,
        ]
    return subprocess.Popen(
        command, env=environment(), stderr=log.open("w"), preexec_fn=apply, start_new_session=True
    )


@pytest.mark.parametrize("name", NAMES)
def test_healthy_job_gets_no_verdict_and_the_end_of_a_rank_is_seen(
    tmp_path: Path, name: str
) -> None:
    """A refused pidfd used to count as a rank that had ended.

    The parent of these ranks collects them late, as launchers do.
    """
    log, run = tmp_path / "log", tmp_path / "run"
    run.mkdir()
    with (
        ring_process(run, 0) as one,
        ring_process(run, 1) as victim,
        _monitor(run, log, RESTRICTIONS[name]) as monitor,
    ):
        time.sleep(7)
        assert monitor.poll() is None, log.read_text()
        assert log.read_text() == ""
        assert [one.poll(), victim.poll()] == [None, None]
        if name != "no descriptor left":  # the journal needs one
            victim.kill()
            assert until(lambda: _ends(run)) == [(1, victim.pid, signal.SIGKILL)]
        monitor.kill()


@pytest.mark.parametrize("name", NAMES)
def test_hung_job_is_reported_and_ended(tmp_path: Path, name: str) -> None:
    log, run = tmp_path / "log", tmp_path / "run"
    run.mkdir()
    with (
        ring_process(run, 0) as one,
        ring_process(run, 1, "broadcast") as two,
        _monitor(run, log, RESTRICTIONS[name], kill=True) as monitor,
    ):
        assert [one.wait(60), two.wait(60)] == [-signal.SIGTERM] * 2, log.read_text()
        assert monitor.wait(60) == 0
    assert "broadcast" in log.read_text()


def _ends(run: Path) -> list[tuple[int, int, int]]:
    lines = [line for path in run.glob("*.journal") for line in path.read_text().splitlines()]
    events = [event for event in map(json.loads, lines) if event.get("event") == "exit"]
    return [(event["rank"], event["pid"], event["signal"]) for event in events]


@pytest.mark.skipif(os.geteuid() != 0 or not _UNSHARE, reason="mount namespaces need root")
def test_monitor_that_sees_no_processes_accuses_nobody(tmp_path: Path) -> None:
    """What cannot be seen has not ended."""
    log, run = tmp_path / "log", tmp_path / "run"
    run.mkdir()
    with ring_process(run, 0) as one, ring_process(run, 1) as two:
        with _monitor(run, log, lambda: None, inside="umount -l /proc") as monitor:
            time.sleep(7)
            if monitor.poll() == 77:
                pytest.skip("not allowed here")
            assert monitor.poll() is None, log.read_text()
            # All members are in one operation for longer than the timeout, which may be said.
            said = log.read_text()
            assert not re.search("crashed|killed|lost|gone|no sign|never|Rank", said), said
            monitor.kill()
        assert [one.poll(), two.poll()] == [None, None]
