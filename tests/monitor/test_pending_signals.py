"""Which processes have been sent a stop signal, according to the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangscope.monitor.pending_signals import is_signalled, is_unsignalled
from hangscope.monitor.processes import ProcessWatch

TERM = signal.SIGTERM
_AS_ALWAYS = "signal.signal(signal.SIGHUP, signal.SIG_DFL)"
"""The tests themselves may run where SIGHUP is ignored (nohup), and children would inherit that."""


@contextmanager
def sleeping(prepare: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs ``prepare`` and then sleeps until it is ended."""
    code = f"import signal, sys, time\n{_AS_ALWAYS}\n{prepare}\nprint(flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_process_with_default_handler_is_unsignalled() -> None:
    with sleeping() as process:
        assert is_unsignalled(process.pid, TERM)


@pytest.mark.parametrize(
    "prepare",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "signal.signal(signal.SIGTERM, lambda *_: None)",
    ],
)
def test_process_with_own_handler_is_not_unsignalled(prepare: str) -> None:
    with sleeping(prepare) as process:
        assert not is_unsignalled(process.pid, TERM)
        assert is_unsignalled(process.pid, signal.SIGHUP)


def test_signal_pending_in_a_stopped_process_counts() -> None:
    """A stopped process handles no signal but SIGKILL until it continues."""
    with sleeping() as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # it has stopped
        assert is_unsignalled(process.pid, TERM)
        assert not is_signalled(process.pid, TERM)
        os.kill(process.pid, TERM)
        assert not is_unsignalled(process.pid, TERM)
        assert is_signalled(process.pid, TERM)


def test_blocked_signal_counts_once_sent() -> None:
    with sleeping("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])") as process:
        assert is_unsignalled(process.pid, TERM)
        os.kill(process.pid, TERM)
        assert not is_unsignalled(process.pid, TERM)


def test_ended_and_nonexistent_processes_are_not_unsignalled() -> None:
    with sleeping() as process:
        os.kill(process.pid, TERM)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert not is_unsignalled(process.pid, TERM)
        assert is_signalled(process.pid, TERM)
    assert not is_unsignalled(process.pid, TERM)
    assert not is_signalled(process.pid, TERM)


@pytest.mark.parametrize("status", ["", "SigPnd:\tnothing\n", "SigPnd:\t0\nShdPnd:\t0\n"])
def test_unreadable_status_is_not_unsignalled(tmp_path: Path, status: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(status)
    (tmp_path / "7" / "stat").write_text("7 (python) S 1 1 1 0 -1 4194560 0\n")
    assert not is_unsignalled(7, TERM, tmp_path)


@pytest.mark.parametrize(("flags", "untold"), [(0x400100, True), (0x400104, False)])
def test_exiting_process_is_not_unsignalled(tmp_path: Path, flags: int, untold: bool) -> None:
    (tmp_path / "7").mkdir()
    none = "".join(f"{name}:\t0\n" for name in ("SigPnd", "ShdPnd", "SigIgn", "SigCgt"))
    (tmp_path / "7" / "status").write_text(none)
    (tmp_path / "7" / "stat").write_text(f"7 (python) R 1 1 1 0 -1 {flags} 0\n")
    assert is_unsignalled(7, TERM, tmp_path) is untold


def test_others_are_unsignalled_when_the_first_has_ended() -> None:
    watch = ProcessWatch()
    with sleeping() as first, sleeping() as second:
        assert watch.add(0, first.pid)
        assert watch.add(1, second.pid)
        os.kill(first.pid, TERM)
        (end,) = watch.wait(60.0)
        assert (end.rank, end.signal) == (0, TERM)
        assert watch.unsignalled(TERM) == [(1, second.pid)]
        os.kill(second.pid, TERM)
        assert watch.unsignalled(TERM) == []
