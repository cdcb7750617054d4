"""Locks in shared memory: which mapping a process waits in, and who else has it.

``multiprocessing`` and ``sem_open`` keep their locks and semaphores in memory that processes share.
The kernel knows who waits there, but not who holds them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hangscope.trace.processes.procfs import PROC, lines_of, process_ids

_PRIVATE = 128
"""FUTEX_PRIVATE_FLAG: only threads of one process use it."""
_MOST_PROCESSES = 1_000
"""On a machine with more, nobody searches for those that share a mapping."""

SharedFile = tuple[str, str]
"""Device and inode: what two processes' mappings of one file have in common."""


class SharedMapping(NamedTuple):
    """A shared mapping of a process."""

    low: int
    """Its first address."""
    high: int
    """The first address behind it."""
    file: SharedFile
    is_writable: bool


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
    return file_at(pid, address, proc) if not operation & _PRIVATE else None


def file_at(pid: int | str, address: int, proc: Path = PROC) -> SharedFile | None:
    """The file of the shared mapping at an address of a process; None without one."""
    found = (m.file for m in shared_mappings(pid, proc) if m.low <= address < m.high)
    return next(found, None)


def processes_that_share(mapping: SharedFile, proc: Path = PROC) -> list[int] | None:
    """The processes that have a mapping; None if too many run.

    Mappings are hidden only of processes with other privileges. Those do not belong to the job, and
    its semaphores are readable for its own user alone.
    """
    pids = process_ids(proc)
    if len(pids) > _MOST_PROCESSES:
        return None
    return [pid for pid in pids if any(m.file == mapping for m in shared_mappings(pid, proc))]


def hides_mappings(pid: int, proc: Path = PROC) -> bool:
    """Whether it may not be read what a process has mapped."""
    return not lines_of(proc / str(pid) / "maps")


def shared_mappings(pid: int | str, proc: Path = PROC) -> list[SharedMapping]:
    """The shared mappings of a process; empty if they may not be read."""
    found = []
    for line in lines_of(proc / str(pid) / "maps"):
        bounds, permissions, _, device, inode, *_ = [*line.split(maxsplit=5), "", "", "", "", ""]
        if permissions.endswith("s"):
            low, _, high = bounds.partition("-")
            file = (device, inode)
            found.append(SharedMapping(int(low, 16), int(high, 16), file, "w" in permissions))
    return found
