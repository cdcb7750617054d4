"""File locks, their holders and waiters, as listed in ``/proc/locks``.

Locks granted elsewhere by a network file system, and those of other containers, are not listed.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from hangscope.trace.processes.descriptors import descriptors_of, target_of
from hangscope.trace.processes.procfs import PROC, lines_of

_LINE = re.compile(
    r"(\d+):\s+(->\s+)?(?:FLOCK|POSIX|OFDLCK)\s+\S+\s+\S+\s+(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+)\s"
)
_MOST_LINES = 10_000

File = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class FileLock:
    """A contended lock: its file, empty if unknown, and its holders."""

    path: str
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileLocks:
    """All locks at one moment, by process: ``waits`` has the number of the lock waited for."""

    proc: Path
    held: dict[int, dict[File, int]]
    waits: dict[int, tuple[int, File]]

    @classmethod
    def now(cls, proc: Path = PROC) -> FileLocks:
        """The current locks."""
        held: dict[int, dict[File, int]] = defaultdict(dict)
        waits: dict[int, tuple[int, File]] = {}
        for line in lines_of(proc / "locks")[:_MOST_LINES]:
            if (found := _LINE.match(line + " ")) is None:
                continue
            number, arrow, pid, major, minor, inode = found.groups()
            file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
            if arrow:
                waits[int(pid)] = int(number), file
            elif int(pid) > 0:
                held[int(pid)][file] = int(number)
        return cls(proc, dict(held), waits)

    def waited_for(self, pid: int) -> FileLock | None:
        """The lock that a thread of a process waits for; None if none is listed."""
        if pid not in self.waits:
            return None
        number, file = self.waits[pid]
        holders = tuple(p for p, files in self.held.items() if number in files.values())
        return FileLock(self._paths(pid, {file}).get(file, ""), holders)

    def held_and_open(self, pid: int) -> FileLock | None:
        """A file that a process has open and another one has locked: the process may be polling the
        lock.
        """
        own = self.held.get(pid, {})
        others = {f: p for p, files in self.held.items() if p != pid for f in files if f not in own}
        paths = self._paths(pid, others)
        return next((FileLock(path, (others[file],)) for file, path in paths.items()), None)

    def held_by(self, pid: int) -> tuple[str, ...]:
        """The files on which a process holds a lock, if their names are known."""
        return tuple(sorted(set(self._paths(pid, self.held.get(pid, {})).values())))

    def _paths(self, pid: int, files: Collection[File]) -> dict[File, str]:
        """The names of those of ``files`` that a process has open.

        A file system may report a different device than the kernel's list; then the inode alone
        decides.
        """
        by_inode: dict[int, dict[int, str]] = defaultdict(dict)
        inodes = {inode for _, inode in files}
        for descriptor in descriptors_of(pid, self.proc) if files else ():
            try:
                status = os.stat(f"{self.proc}/{pid}/fd/{descriptor}")
            except OSError:
                continue
            if status.st_ino in inodes:
                path = target_of(pid, descriptor, self.proc)
                by_inode[status.st_ino][status.st_dev] = path
        found = {}
        for device, inode in files:
            paths = by_inode.get(inode, {})
            if device in paths:
                found[device, inode] = paths[device]
            elif len(paths) == 1:
                found[device, inode] = next(iter(paths.values()))
        return found
