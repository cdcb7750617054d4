"""Observes when and how processes end, without being their parent.

A pidfd becomes readable the moment its process ends. Where there are none, ``/proc`` is polled, and
a process that cannot be seen there has not ended for that. Until the launcher's ``wait``, the
process is a zombie whose wait status is in ``/proc/<pid>/stat``. Since 6.15 the kernel also keeps
the status for holders of the pidfd after that (``PIDFD_GET_INFO``, ``PIDFD_INFO_EXIT``).
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from hangscope.monitor.pending_signals import is_signalled, is_unsignalled
from hangscope.ring.process_identity import START_TICKS, start_ticks, stat_fields
from hangscope.trace.processes.cgroups import GROUPS, controller_files
from hangscope.trace.processes.procfs import lines_of, stat_of
from hangscope.trace.processes.signals import exists

_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""``struct pidfd_info`` up to ``exit_code``: mask, cgroup id, eleven ids, exit code."""
_PIDFD_GET_INFO = 0xC0000000 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_THREADS = 17
"""Index of the number of threads among the fields after the name in ``/proc/<pid>/stat``."""
POLL_S = 0.025
"""How often ``/proc`` is polled; launchers wait for their ranks less often, so zombies are seen."""


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
        self._watched: dict[int, _Watched] = {}
        self._seen: set[int] = set()

    def add(self, rank: int, pid: int, started_ticks: int = 0) -> bool:
        """Watch one process; False if it has already ended.

        ``started_ticks``: when it started, if known: another process may have its id by now.
        """
        if pid in self._seen:
            return True
        descriptor = self._early.pop(pid, -1)
        if descriptor < 0:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                return False
            except OSError:
                # A seccomp filter, an old kernel, or no descriptor left: nothing says it has ended.
                if exists(pid) is False:
                    return False
            if started_ticks and start_ticks(pid) not in (0, started_ticks):
                if descriptor >= 0:
                    os.close(descriptor)
                return False
        if descriptor >= 0:
            self._poll.register(descriptor, select.POLLIN)
        self._seen.add(pid)
        self._watched[pid] = _Watched(rank, descriptor, started_ticks or start_ticks(pid))
        return True

    def remove(self, pid: int) -> None:
        """Stop watching a process; it may be added again."""
        self._seen.discard(pid)
        if pid in self._watched:
            self._release(pid)

    def _release(self, pid: int) -> None:
        watched = self._watched.pop(pid)
        if watched.descriptor >= 0:
            self._poll.unregister(watched.descriptor)
            os.close(watched.descriptor)

    def wait(self, timeout_s: float) -> list[ProcessEnd]:
        """Sleep until a process ends or ``timeout_s`` is over; returns the ends, oldest first."""
        until_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            polled = any(watched.descriptor < 0 for watched in self._watched.values())
            step_s = min(left_s, POLL_S) if polled else left_s
            ready = {descriptor for descriptor, _ in self._poll.poll(step_s * 1000)}
            ended = [pid for pid, one in self._watched.items() if _has_ended(pid, one, ready)]
            if ended or step_s == left_s:
                return sorted(map(self._end_of, ended), key=lambda end: end.at_ns)

    def _end_of(self, pid: int) -> ProcessEnd:
        """How a process has ended; it is not watched any more."""
        watched = self._watched[pid]
        status = _status(watched.descriptor, pid, watched.start_ticks)
        self._release(pid)
        return _end(watched.rank, pid, status, self._ended_ns.pop(pid, 0) or time.time_ns())

    @property
    def processes(self) -> list[tuple[int, int]]:
        """(rank, pid) of every watched process that has not ended, in order of arrival."""
        return [(watched.rank, pid) for pid, watched in self._watched.items()]

    def were_killed_for_memory(self) -> bool:
        """Whether the OOM killer has struck in this control group since the watch began."""
        return oom_kills() > self._oom_kills >= 0

    def unsignalled(self, number: int) -> list[tuple[int, int]]:
        """(rank, pid) of processes that the signal would end and that were sent no fatal signal."""
        return [(rank, pid) for rank, pid in self.processes if is_unsignalled(pid, number)]

    def signalled(self, number: int) -> list[tuple[int, int]]:
        """(rank, pid) of processes that have this signal pending and will be ended by it."""
        return [(rank, pid) for rank, pid in self.processes if is_signalled(pid, number)]

    def watches(self, pid: int) -> bool:
        """Whether a process is watched and has not ended."""
        return pid in self._watched

    @property
    def alive(self) -> int:
        """Number of watched processes that have not ended."""
        return len(self._watched)


@dataclass(frozen=True, slots=True)
class _Watched:
    """A process that has not ended."""

    rank: int
    descriptor: int
    """Its pidfd; -1 without one: then it is looked for in ``/proc`` every `POLL_S`."""
    start_ticks: int


def _has_ended(pid: int, watched: _Watched, ready: Container[int]) -> bool:
    """Whether a process has ended; ``ready`` are the pidfds that say so."""
    if watched.descriptor >= 0:
        return watched.descriptor in ready
    fields = stat_fields(pid)
    if fields is None:
        return exists(pid) is False
    is_same = watched.start_ticks in (0, int(fields[START_TICKS]))
    # The main thread may have ended alone; the process has with its last thread.
    return not is_same or (fields[0] in "ZX" and int(fields[_THREADS]) <= 1)


def _end(rank: int, pid: int, status: int | None, at_ns: int) -> ProcessEnd:
    if status is None:
        return ProcessEnd(rank, pid, at_ns)
    if os.WIFSIGNALED(status):
        return ProcessEnd(rank, pid, at_ns, signal=os.WTERMSIG(status))
    return ProcessEnd(rank, pid, at_ns, code=os.WEXITSTATUS(status))


def _status(descriptor: int, pid: int, started_ticks: int) -> int | None:
    """The wait status of a process that has ended; None if it can no longer be learnt."""
    status = _status_from_pidfd(descriptor)
    if status is None and started_ticks in (0, start_ticks(pid)):
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
    if descriptor < 0:
        return None
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
