"""Finds out from the kernel what a process's main thread waits for.

A stack ends at the line that made the call. Which lock, child, pipe or peer that call waits for is
in a few small files of ``/proc``; whatever cannot be read is omitted. Nothing is sent to the
process.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hangscope.trace.facts import RUNNABLE, UNREAD_OUTPUT, KernelWait
from hangscope.trace.processes.cgroups import cpu_limit
from hangscope.trace.processes.descriptors import processes_at_other_end, target_of
from hangscope.trace.processes.file_locks import FileLocks
from hangscope.trace.processes.procfs import PROC, lines_of, stat_of
from hangscope.trace.processes.shared_memory import processes_that_share, shared_mapping_at
from hangscope.trace.processes.sockets import peer_of
from hangscope.trace.signals import name_of

_IN_LOCK = re.compile(r"lock_inode|setlk|flock_lock|posix_lock|locks_")
_IN_PIPE = re.compile(r"^(?:anon_)?(?:pipe|fifo)_(read|write|wait)")
_IN_SOCKET = re.compile(r"^(?:wait_woken|sk_|inet_|unix_|__skb_|tcp_|skb_)")
_TERMINAL = re.compile(r"/dev/(?:pts/\d+|tty\w*|console)$")
_STATUS = 49
"""Index of the wait status among the fields of ``stat`` after the name."""
_USER_TIME = 11
"""Index of the user time; the system time follows it."""
_POLL = struct.Struct("=iHH")
_MOST_POLLED = 16
_STATES = {"T": "stopped", "t": "stopped", "Z": "ended"}
_CANNOT_ANSWER = frozenset(_STATES.values())
_MOST_CHILDREN = 64
_STARVING_SHARE = 0.05
"""With a smaller CPU quota a process hardly makes progress, whatever its threads wait for."""
_MOST_SHARING = 16
_SHOWN, _SHOWN_NAMES = 60, 3
_SAFE_TO_SHOW = re.compile(
    r"(?:/|\.\.?/)?(?:[\w.-]+/)*[\w-]{1,40}\.(?:py|sh|pl|rb|js)|[a-z][a-z-]{1,19}|\d{1,9}"
)
"""A script, a subcommand such as ``clone``, a number."""


def main_thread_wait(
    pid: int,
    *,
    runs: bool = False,
    locks_now: Callable[[Path], FileLocks] = FileLocks.now,
    proc: Path = PROC,
) -> KernelWait | None:
    """What the main thread of a process waits for; None if there is nothing to report.

    Parameters
    ----------
    pid:
        A process of this machine and pid namespace.
    runs:
        Whether it is runnable rather than asleep.
    locks_now:
        Returns the file locks; a caller that observes several processes reads them only once.
    proc:
        Where the process table is mounted.
    """
    locks = locks_now(proc)
    if runs:
        wait = KernelWait(RUNNABLE, cpu_limit(pid, proc))
    else:
        function = next(iter(lines_of(proc / str(pid) / "wchan")), "")
        wait = _wait_in_function(function, pid, locks, proc)
    if wait.kind == "thread" and (limit := cpu_limit(pid, proc, below=_STARVING_SHARE)):
        wait = KernelWait(RUNNABLE, limit)  # the thread it waits for has the same quota
    states = ((child, state_of(child, proc)) for child in children_of(pid, proc))
    helpers = [describe_process(c, proc) for c, state in states if state in _CANNOT_ANSWER]
    locked = locks.held_by(pid)
    if not (wait.kind or helpers or locked):
        return None
    now_ns = time.time_ns()
    return replace(
        wait,
        names=tuple(describe_process(other, proc) for other in wait.processes[:_SHOWN_NAMES]),
        locked=locked,
        helpers=tuple(helpers[:_SHOWN_NAMES]),
        since_ns=now_ns,
        seen_ns=now_ns,
    )


def exec_wait(pid: int, proc: Path = PROC) -> KernelWait:
    """States that a process has replaced its program, and by which."""
    now_ns = time.time_ns()
    return KernelWait("exec", names=(describe_process(pid, proc),), since_ns=now_ns, seen_ns=now_ns)


def _wait_in_function(function: str, pid: int, locks: FileLocks, proc: Path) -> KernelWait:
    """What is waited for, given the kernel function in which the thread sleeps."""
    if function.startswith("futex"):
        return _lock_in_memory(pid, proc)
    if _IN_LOCK.search(function):
        lock = locks.waited_for(pid)
        return KernelWait("lock", lock.path, lock.holders) if lock is not None else KernelWait()
    if function.endswith("nanosleep"):
        lock = locks.held_and_open(pid)
        if lock is None:
            return KernelWait("timer")
        return KernelWait("locked file", lock.path, lock.holders)
    if "do_wait" in function or "wait4" in function:
        living = [c for c in children_of(pid, proc) if state_of(c, proc) != "ended"]
        named = [child for child in living if child in _syscall_arguments(pid, proc)[:2]]
        awaited = tuple(named or living)
        unread = any(_fills_pipe_to(pid, child, proc) for child in awaited[:_SHOWN_NAMES])
        return KernelWait("child", UNREAD_OUTPUT if unread else "", awaited)
    if function == "wait_for_partner":
        return KernelWait("fifo")
    if pipe := _IN_PIPE.match(function):
        return _pipe(pid, pipe[1] == "write", proc)
    if _IN_SOCKET.match(function):
        return _peer(pid, _syscall_arguments(pid, proc)[:1], proc)
    if function.startswith("poll_schedule"):
        return _peer(pid, _polled_descriptors(pid, proc), proc)
    return KernelWait()


def _lock_in_memory(pid: int, proc: Path) -> KernelWait:
    """A lock or condition between threads, or a semaphore between processes."""
    mapping = shared_mapping_at(pid, _syscall_arguments(pid, proc), proc)
    if mapping is None:
        return KernelWait("thread")
    sharing = processes_that_share(mapping, proc)
    others = tuple(other for other in sharing or () if other != pid)
    return KernelWait("semaphore", "", others[:_MOST_SHARING], alone=sharing == [pid])


def _pipe(pid: int, writes: bool, proc: Path) -> KernelWait:
    """A pipe that is empty, or full and not being read."""
    pipe = next((target_of(pid, fd, proc) for fd in _syscall_arguments(pid, proc)[:1]), "")
    ends = processes_at_other_end(pid, pipe, writes, proc) if pipe.startswith("pipe:") else None
    others = tuple(other for other in ends or () if other != pid)
    kind = "full pipe" if writes else "pipe"
    # If not even the process itself is found, the other end is invisible from here.
    return KernelWait(kind, "", others[:_SHOWN_NAMES], alone=ends == [pid])


def _fills_pipe_to(reader: int, pid: int, proc: Path) -> bool:
    """Whether a process, or one it waits for, writes into a full pipe that ``reader`` alone
    holds."""
    function = next(iter(lines_of(proc / str(pid) / "wchan")), "")
    if "do_wait" in function:
        return any(_fills_pipe_to(reader, child, proc) for child in children_of(pid, proc))
    pipe = _IN_PIPE.match(function)
    if pipe is None or pipe[1] != "write":
        return False
    wait = _pipe(pid, True, proc)
    return wait.processes == (reader,)


def _peer(pid: int, descriptors: list[int], proc: Path) -> KernelWait:
    """The peers of the sockets that it waits at, or the terminal."""
    ends = (peer_of(pid, descriptor, proc) for descriptor in descriptors)
    peers = [peer for peer in ends if peer is not None and peer.what]
    if not peers:
        targets = (target_of(pid, descriptor, proc) for descriptor in descriptors)
        terminal = next(filter(_TERMINAL.match, targets), "")
        return KernelWait("terminal" if terminal else "", terminal)
    here = {peer.process for peer in peers}
    others = tuple(sorted(other for other in here if other not in (None, pid)))
    what = ", ".join(sorted({peer.what for peer in peers})[:_SHOWN_NAMES])
    return KernelWait("socket", what, others[:_SHOWN_NAMES], alone=here == {pid})


def _syscall_arguments(pid: int, proc: Path) -> list[int]:
    """Arguments of the current system call; empty if they may not be read."""
    words = next(iter(lines_of(proc / str(pid) / "syscall")), "").split()
    try:
        return [int(word, 16) for word in words[1:7]]
    except ValueError:
        return []


def _polled_descriptors(pid: int, proc: Path) -> list[int]:
    """The descriptors passed to ``poll``, from the process's memory; none for ``select``."""
    where, count, *_ = [*_syscall_arguments(pid, proc), 0, 0]
    if where < 4096 or not 0 < count <= _MOST_POLLED:
        return []
    try:
        with open(proc / str(pid) / "mem", "rb", buffering=0) as memory:
            memory.seek(where)
            raw = memory.read(count * _POLL.size)
    except (OSError, OverflowError, ValueError):
        return []
    return [fd for fd, _, _ in _POLL.iter_unpack(raw[: len(raw) // _POLL.size * _POLL.size])]


def children_of(pid: int, proc: Path = PROC) -> list[int]:
    """Children of a process's main thread that have not been reaped.

    Those of other threads are omitted: there may be hundreds of threads to query.
    """
    words = " ".join(lines_of(proc / str(pid) / "task" / str(pid) / "children")).split()
    return [int(word) for word in words if word.isdecimal()][:_MOST_CHILDREN]


def helper_ticks(pid: int, proc: Path = PROC) -> int:
    """The CPU time that the children of a process's main thread have used, in clock ticks."""
    stats = (stat_of(child, proc) for child in children_of(pid, proc))
    return sum(int(fields[_USER_TIME]) + int(fields[_USER_TIME + 1]) for fields in stats if fields)


def state_of(pid: int, proc: Path = PROC) -> str:
    """``stopped`` or ``ended``; empty if it can run."""
    return _STATES.get(next(iter(stat_of(pid, proc)), ""), "")


def describe_process(pid: int, proc: Path = PROC) -> str:
    """``sleep 9999 (pid 4711)``; with its state if it cannot run, or how it ended."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    command = _command([word.decode("utf-8", "replace") for word in words if word])
    command = command or next(iter(lines_of(proc / str(pid) / "comm")), "a process")
    shown = command if len(command) <= _SHOWN else command[: _SHOWN - 1] + "…"
    state = state_of(pid, proc)
    if state == "ended":
        state = _end_of(pid, proc)
    return f"{shown} (pid {pid}{', ' + state if state else ''})"


def _command(words: list[str]) -> str:
    """The program and, if it follows, the script, the subcommand or the number.

    Arguments may be secrets, and this goes into a log, so no other arguments are shown.
    """
    if not words:
        return ""
    program, *arguments = words
    first = arguments[0] if arguments else ""
    shown = [program.rpartition("/")[2]]
    if _SAFE_TO_SHOW.fullmatch(first):
        shown.append(first.rpartition("/")[2])
    return " ".join(shown)


def _end_of(pid: int, proc: Path) -> str:
    """How a process ended that has not been reaped."""
    try:
        status = int(stat_of(pid, proc)[_STATUS])
    except (IndexError, ValueError):
        return "ended"
    if os.WIFSIGNALED(status):
        return f"killed by {name_of(os.WTERMSIG(status))}"
    return f"ended with status {os.WEXITSTATUS(status)}"
