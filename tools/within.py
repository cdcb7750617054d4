"""Runs a command that must end: ``python -m tools.within SECONDS COMMAND ...``.

After so many seconds the command is interrupted (pytest then names the tests that still run), and
half a minute later it is killed. Processes that it leaves behind, also orphans in sessions of their
own, are named and killed in any case: one that holds the output's pipe keeps a CI job from ending.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 30.0
_TIMED_OUT = 124  # as timeout(1) has it


def main(seconds: float, command: list[str]) -> int:
    """Run the command; its exit status, or 124 where it took too long."""
    if sys.platform == "linux":  # orphans become ours instead of init's
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command)
    try:
        status = _ended(child.pid, seconds)
        if status is None:
            print(f"not done after {seconds:g} s: {' '.join(command)}", file=sys.stderr, flush=True)
            child.send_signal(signal.SIGINT)
            _ended(child.pid, _GRACE_S)
            status = _TIMED_OUT
    except KeyboardInterrupt:  # the terminal has interrupted the command, too
        _ended(child.pid, _GRACE_S)
        status = 130
    _kill_rest()
    return status


def _ended(pid: int, seconds: float) -> int | None:
    """The exit status of this process, reaping whatever else ends; None if it does not end."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(-1, os.WNOHANG)
        if done == pid:
            return os.waitstatus_to_exitcode(status)
        if not done:
            time.sleep(0.05)
    return None


def _kill_rest() -> None:
    while rest := psutil.Process().children(recursive=True):
        for process in rest:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.status() != psutil.STATUS_ZOMBIE:
                    words = " ".join(process.cmdline())[:300]
                    print(f"left behind: {process.pid} {words}", file=sys.stderr, flush=True)
                process.kill()
        psutil.wait_procs(rest, timeout=5)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    code = main(float(sys.argv[1]), sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)
