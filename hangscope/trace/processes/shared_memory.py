"""Locks in shared memory: which mapping a process waits in, and who else has it.

``multiprocessing`` and ``sem_open`` keep their locks and semaphores in memory that processes share.
The kernel knows who waits there, but not who holds them.
"""

from __future__ import annotations

from pathlib import Path

from hangscope.trace.processes.procfs import PROC, lines_of, process_ids

_PRIVATE = 128
"""FUTEX_PRIVATE_FLAG: only threads of one process use it."""
_MOST_PROCESSES = 1_000
"""On a machine with more, nobody searches for those that share a mapping."""

SharedFile = tuple[str, str]
"""Device and inode: what two processes' mappings of one file have in common."""


def shared_mapping_at(pid: int, futex: list[int], proc: Path = PROC) -> SharedFile | None:
    """The shared mapping that holds the word a thread waits at; None if it is the process's own.

    Parameters
    ----------
    pid:
        The process.
    futex:
        The arguments of its system call: address, operation, and more.
    proc:
        Where the process table is mounted.
    """
    address, operation, *_ = [*futex, 0, _PRIVATE]
    if operation & _PRIVATE:
        return None
    for low, high, mapping in _shared_mappings(pid, proc):
        if low <= address < high:
            return mapping
    return None


def processes_that_share(mapping: SharedFile, proc: Path = PROC) -> list[int] | None:
    """The processes that have a mapping; None if too many run.

    Mappings are hidden only of processes with other privileges. Those do not belong to the job, and
    its semaphores are readable for its own user alone.
    """
    pids = process_ids(proc)
    if len(pids) > _MOST_PROCESSES:
        return None
    return [pid for pid in pids if any(m == mapping for *_, m in _shared_mappings(pid, proc))]


def _shared_mappings(pid: int, proc: Path) -> list[tuple[int, int, SharedFile]]:
    """Bounds and identity of a process's shared mappings; empty if they may not be read."""
    found = []
    for line in lines_of(proc / str(pid) / "maps"):
        bounds, permissions, _, device, inode, *_ = [*line.split(maxsplit=5), "", "", "", "", ""]
        if permissions.endswith("s"):
            low, _, high = bounds.partition("-")
            found.append((int(low, 16), int(high, 16), (device, inode)))
    return found
