"""Observes when and how processes end, without being their parent.

A pidfd becomes readable the moment its process ends. From then until the launcher's ``wait``, the
process is a zombie whose wait status is in ``/proc/<pid>/stat``. Since 6.15 the kernel also keeps
the status for holders of the pidfd after that (``PIDFD_GET_INFO``, ``PIDFD_INFO_EXIT``).
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hangscope.monitor.pending_signals import is_signalled, is_unsignalled
from hangscope.trace.processes.cgroups import GROUPS, controller_files
from hangscope.trace.processes.procfs import lines_of, stat_of

_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""``struct pidfd_info`` up to ``exit_code``: mask, cgroup id, eleven ids, exit code."""
_PIDFD_GET_INFO = 0xC0000000 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended; ``code`` and ``signal`` are both None if nobody could see it."""

    rank: int
    pid: int
    at_ns: int
    code: int | None = None
    signal: int | None = None


class ProcessWatch:
    """Watches the processes of a node's ranks.

    `hangscope.monitor.early_pidfds` may have started before: ``descriptors`` are its pidfds by
    process id, ``ended_ns`` the end times it saw, and ``oom_kills_before`` the value of `oom_kills`
    at its start (default: the present value).
    """

    def __init__(
        self,
        descriptors: Mapping[int, int] | None = None,
        ended_ns: Mapping[int, int] | None = None,
        oom_kills_before: int | None = None,
    ) -> None:
        self._oom_kills = oom_kills() if oom_kills_before is None else oom_kills_before
        self._early = dict(descriptors or {})
        self._ended_ns = dict(ended_ns or {})
        self._poll = select.poll()
        self._by_fd: dict[int, tuple[int, int]] = {}
        self._watched: set[int] = set()

    def add(self, rank: int, pid: int) -> bool:
        """Watch one process; False if it is already gone or cannot be watched."""
        if pid in self._watched:
            return True
        descriptor = self._early.pop(pid, -1)
        if descriptor < 0:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                return False
        self._watched.add(pid)
        self._by_fd[descriptor] = (rank, pid)
        self._poll.register(descriptor, select.POLLIN)
        return True

    def remove(self, pid: int) -> None:
        """Stop watching a process; it may be added again."""
        self._watched.discard(pid)
        for descriptor, (_, watched) in list(self._by_fd.items()):
            if watched == pid:
                del self._by_fd[descriptor]
                self._poll.unregister(descriptor)
                os.close(descriptor)

    def wait(self, timeout_s: float) -> list[ProcessEnd]:
        """Sleep until a process ends or ``timeout_s`` is over; returns the ends, oldest first."""
        if not self._by_fd:
            time.sleep(timeout_s)
            return []
        ends = []
        for descriptor, _ in self._poll.poll(timeout_s * 1000):
            rank, pid = self._by_fd.pop(descriptor)
            self._poll.unregister(descriptor)
            status = _status(descriptor, pid)
            os.close(descriptor)
            at_ns = self._ended_ns.pop(pid, 0) or time.time_ns()
            ends.append(_end(rank, pid, status, at_ns))
        return sorted(ends, key=lambda end: end.at_ns)

    def send(self, number: int) -> None:
        """Send a signal to every watched process that has not ended, in reverse order of arrival.

        If a rank was started by another watched process, it must get the signal before its parent
        ends: `torch.multiprocessing` interrupts it otherwise, and it would seem to exit by itself.
        """
        for descriptor in reversed(self._by_fd):
            try:
                signal.pidfd_send_signal(descriptor, number)
            except OSError:
                continue  # it has just ended, or is not ours to signal

    def were_killed_for_memory(self) -> bool:
        """Whether the OOM killer has struck in this control group since the watch began."""
        return oom_kills() > self._oom_kills >= 0

    def unsignalled(self, number: int) -> list[tuple[int, int]]:
        """(rank, pid) of processes that the signal would end and that were sent no fatal signal."""
        return [(rank, pid) for rank, pid in self._by_fd.values() if is_unsignalled(pid, number)]

    def signalled(self, number: int) -> list[tuple[int, int]]:
        """(rank, pid) of processes that have this signal pending and will be ended by it."""
        return [(rank, pid) for rank, pid in self._by_fd.values() if is_signalled(pid, number)]

    def watches(self, pid: int) -> bool:
        """Whether a process is watched and has not ended."""
        return any(pid == watched for _, watched in self._by_fd.values())

    @property
    def alive(self) -> int:
        """Number of watched processes that have not ended."""
        return len(self._by_fd)


def _end(rank: int, pid: int, status: int | None, at_ns: int) -> ProcessEnd:
    if status is None:
        return ProcessEnd(rank, pid, at_ns)
    if os.WIFSIGNALED(status):
        return ProcessEnd(rank, pid, at_ns, signal=os.WTERMSIG(status))
    return ProcessEnd(rank, pid, at_ns, code=os.WEXITSTATUS(status))


def _status(descriptor: int, pid: int) -> int | None:
    """The wait status of a process that has ended; None if it can no longer be learnt."""
    status = _status_from_pidfd(descriptor)
    if status is None:
        status = _status_of_zombie(pid)
    if status is None:
        # Reaped between the two attempts: only from then on does the pidfd report the status.
        status = _status_from_pidfd(descriptor)
    return status


def _status_of_zombie(pid: int) -> int | None:
    """The wait status in ``/proc``, if the kernel shows it: it shows 0 without permission."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    fields = stat_of(pid)
    if len(fields) <= 49 or fields[0] not in "ZX" or os.geteuid() not in (0, owner):
        return None
    return int(fields[49])


def _status_from_pidfd(descriptor: int) -> int | None:
    buffer = bytearray(_PIDFD_INFO.size)
    struct.pack_into("=Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    mask, *_, status = _PIDFD_INFO.unpack(buffer)
    return int(status) if mask & _PIDFD_INFO_EXIT else None


def oom_kills() -> int:
    """OOM kills counted so far in this process's cgroup; -1 if that cannot be read."""
    for path in _memory_event_files():
        for line in lines_of(path):
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdecimal():
                return int(value)
    return -1


def _memory_event_files() -> list[Path]:
    files = controller_files("self", "memory", ("memory.events", "memory.oom_control"))
    return [*files, GROUPS / "memory.events"]
