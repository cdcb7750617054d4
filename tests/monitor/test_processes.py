"""Observing how a process ends without being its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hangscope.monitor import processes
from hangscope.monitor.processes import ProcessEnd, ProcessWatch

TELLS_AFTER_COLLECTION = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
"""Whether this kernel keeps a process's status for holders of its pidfd."""

_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
for line in sys.stdin:
    if line == "end\\n":
        child.stdin.close()
    elif line == "collect\\n":
        print("collected", child.wait(), flush=True)
"""


class Family:
    """A process that ends on request, and a parent that reaps it on request."""

    def __init__(self, parent: subprocess.Popen[str]) -> None:
        self._parent = parent
        self.pid = int(self._heard())

    def end(self) -> None:
        self._say("end")

    def collect(self) -> None:
        """Have the process reaped; returns when its status is gone from ``/proc``."""
        self._say("collect")
        assert self._heard().startswith("collected")

    def _say(self, word: str) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.write(f"{word}\n")
        self._parent.stdin.flush()

    def _heard(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline()


@contextmanager
def family(status: int = 0) -> Iterator[Family]:
    code = f"import os; os.read(0, 1); os._exit({status})"
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            yield Family(parent)
        finally:
            assert parent.stdin is not None
            parent.stdin.close()


def watched(pid: int) -> ProcessWatch:
    watch = ProcessWatch()
    assert watch.add(5, pid)
    assert watch.alive == 1
    return watch


def only_end(watch: ProcessWatch) -> ProcessEnd:
    (end,) = watch.wait(60.0)
    assert watch.alive == 0
    return end


@pytest.mark.parametrize("status", [3, 0])
def test_exit_status_is_observed(status: int) -> None:
    with family(status) as it:
        watch = watched(it.pid)
        it.end()
        end = only_end(watch)
        assert (end.rank, end.pid, end.code, end.signal) == (5, it.pid, status, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_fatal_signal_is_observed(number: signal.Signals) -> None:
    with family() as it:
        watch = watched(it.pid)
        os.kill(it.pid, number)
        end = only_end(watch)
        assert (end.code, end.signal) == (None, number)


@pytest.mark.skipif(not TELLS_AFTER_COLLECTION, reason="needs Linux 6.15")
def test_status_is_observed_after_the_parent_reaped_it() -> None:
    with family(3) as it:
        watch = watched(it.pid)
        it.end()
        it.collect()
        assert only_end(watch).code == 3


@pytest.mark.skipif(not TELLS_AFTER_COLLECTION, reason="needs Linux 6.15")
def test_status_is_observed_if_the_parent_reaps_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before that moment the pidfd has no status, after it ``/proc`` has none."""
    in_proc = processes._status_of_zombie
    with family(3) as it:

        def too_late(pid: int) -> int | None:
            it.collect()
            return in_proc(pid)

        monkeypatch.setattr(processes, "_status_of_zombie", too_late)
        watch = watched(it.pid)
        it.end()
        assert only_end(watch).code == 3


def test_ended_process_cannot_be_watched() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not ProcessWatch().add(0, process.pid)


def test_zombie_has_the_status_on_older_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_status_from_pidfd", lambda descriptor: None)
    watch = ProcessWatch()
    descriptors = len(os.listdir("/proc/self/fd"))
    with family(5) as child:
        assert watch.add(3, child.pid)
        child.end()
        (end,) = watch.wait(20.0)
    assert (end.rank, end.code, end.signal) == (3, 5, None)
    assert len(os.listdir("/proc/self/fd")) == descriptors, "its descriptor is closed"


@pytest.mark.parametrize(
    ("before", "now", "killed"), [(0, 1, True), (2, 2, False), (-1, 1, False), (-1, -1, False)]
)
def test_oom_kill_raises_the_counter(
    monkeypatch: pytest.MonkeyPatch, before: int, now: int, killed: bool
) -> None:
    """Unless the counter could not be read before: a container may get one later."""
    monkeypatch.setattr(processes, "oom_kills", lambda: before)
    watch = ProcessWatch()
    monkeypatch.setattr(processes, "oom_kills", lambda: now)
    assert watch.were_killed_for_memory() is killed
