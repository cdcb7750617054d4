"""The only place from which HangScope signals a process that it has not started itself.

The process id, thread and signal number in a file are claims. A `Target` exists only if the kernel
confirms that the process belongs to the job, and a signal goes only to a `Target`. A pidfd pins the
process meanwhile; where there is none, its start time is compared before and after.

Source: pidfd_open(2), pidfd_send_signal(2), proc_pid_status(5), proc_pid_maps(5).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from hangscope.ring import portable
from hangscope.ring.process_identity import pid_namespace, start_ticks
from hangscope.ring.stack_requests import STACK_SIGNALS
from hangscope.trace.processes.procfs import PROC, stat_of, status_of
from hangscope.trace.processes.shared_memory import SharedFile, shared_mappings

_PIDFD_THREAD = os.O_EXCL
"""A pidfd of one thread; since kernel 6.9."""
_MOST_ANCESTORS = 64
_INIT = 1


class Evidence(Protocol):
    """What shows that a process belongs to the job."""

    def holds(self, pid: int) -> bool:
        """Whether the kernel shows it now for this process."""


@dataclass(frozen=True, slots=True)
class WritesRing:
    """The process has this very ring file mapped for writing; readers map it read-only."""

    file: SharedFile | None

    def holds(self, pid: int) -> bool:
        return self.file is not None and any(
            mapping.file == self.file and mapping.is_writable for mapping in shared_mappings(pid)
        )


@dataclass(frozen=True, slots=True)
class DescendsFrom:
    """The process was started by one of these launchers, given as (process id, start time).

    The init process is none: whoever has lost its parent becomes its child.
    """

    launchers: frozenset[tuple[int, int]]

    def holds(self, pid: int) -> bool:
        return any((one, start_ticks(one)) in self.launchers for one in _ancestors(pid))


def launcher_of(pids: Iterable[int]) -> DescendsFrom:
    """The evidence of having been started by what has started all of these processes.

    That is their nearest common ancestor, as each may have a wrapper of its own.
    """
    lines = [list(_ancestors(pid)) for pid in pids]
    shared = (one for one in lines[0] if all(one in line for line in lines)) if lines else ()
    return DescendsFrom(frozenset((one, start_ticks(one)) for one in list(shared)[:1]))


class Target:
    """A process of the job that may be signalled; made by `target_of`."""

    def __init__(self, pid: int, started_ticks: int, descriptor: int) -> None:
        self._pid = pid
        self._started_ticks = started_ticks
        self._descriptor = descriptor

    def send(self, number: int) -> bool:
        """Send a signal to the process; False if it has ended or nothing may be sent to it."""
        if self._descriptor >= 0:
            try:
                signal.pidfd_send_signal(self._descriptor, number)
                return True
            except ProcessLookupError:
                return False
            except OSError:
                pass  # the call itself is not allowed here
        if not self._is_same():
            return False
        try:
            os.kill(self._pid, number)
        except OSError:
            return False
        return True

    def ask_for_stacks(self, thread: int, number: int) -> bool:
        """Make one thread write the stacks; False if it does not handle the signal by a handler.

        The signal goes to one thread only: sent to the process, it could be delivered to the thread
        that hangs, and end a ``sleep`` or ``poll`` that nothing else would have ended.
        """
        if number not in STACK_SIGNALS or not self._is_same():
            return False
        descriptor = _pidfd(thread, _PIDFD_THREAD)
        try:
            task = PROC / str(self._pid) / "task"
            caught = int(status_of(thread, task).get("SigCgt", "0"), 16)
            if not caught >> (number - 1) & 1:
                return False
            if descriptor >= 0:
                signal.pidfd_send_signal(descriptor, number)
                return True
        except (OSError, ValueError):
            return False
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return self._is_same() and _tgkill(self._pid, thread, number) and self._is_same()

    def close(self) -> None:
        """Release the process."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_same(self) -> bool:
        return start_ticks(self._pid) == self._started_ticks


def target_of(pid: int, started_ticks: int, evidence: Iterable[Evidence]) -> Target | None:
    """A process as a target; None unless it is this user's, in this pid namespace, and of the job.

    Parameters
    ----------
    pid, started_ticks:
        The process, as somebody claims: its id and start time; a time of 0 is not compared.
    evidence:
        What may show that it belongs to the job; one that holds is enough.
    """
    if pid <= 1 or pid == os.getpid():
        return None
    descriptor = _pidfd(pid)
    target = Target(pid, start_ticks(pid), descriptor)
    if (
        target._started_ticks in (started_ticks or target._started_ticks,)
        and target._started_ticks > 0
        and _is_own(pid)
        and any(one.holds(pid) for one in evidence)
        and target._is_same()
    ):
        return target
    target.close()
    return None


@contextlib.contextmanager
def targets_of(
    claimed: Iterable[tuple[int, int, Iterable[Evidence]]],
) -> Iterator[dict[int, Target]]:
    """Those of these processes that are targets, by process id; parameters as of `target_of`."""
    with contextlib.ExitStack() as stack:
        found: dict[int, Target] = {}
        for one in claimed:
            target = target_of(*one)
            if target is not None:
                stack.callback(target.close)
                found[one[0]] = target
        yield found


def exists(pid: int) -> bool | None:
    """Whether a process with this id exists; None if the kernel does not tell. Sends nothing."""
    if pid <= 0 or sys.platform == "win32":  # there, signal 0 is one that is sent
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except OSError:
        return None
    return True


def _is_own(pid: int) -> bool:
    """Whether a process is this user's and in this pid namespace."""
    uids = status_of(pid).get("Uid", "").split()
    own = pid_namespace()
    return uids[:2] == [str(portable.user_id())] * 2 and own == pid_namespace(f"/proc/{pid}") != 0


def _ancestors(pid: int) -> Iterator[int]:
    """The parents of a process, nearest first, up to but without the init process."""
    for _ in range(_MOST_ANCESTORS):
        fields = stat_of(pid)
        pid = int(fields[1]) if len(fields) > 1 and fields[1].isdecimal() else 0
        if pid <= _INIT:
            return
        yield pid


def _pidfd(number: int, flags: int = 0) -> int:
    """A pidfd; -1 without one: no such process, an old kernel, a seccomp filter."""
    try:
        return os.pidfd_open(number, flags)
    except OSError:
        return -1


def _tgkill(pid: int, thread: int, number: int) -> bool:
    import ctypes

    try:
        tgkill = ctypes.CDLL(None, use_errno=True).tgkill
    except AttributeError:  # missing before glibc 2.30
        return False
    return bool(tgkill(pid, thread, number) == 0)
