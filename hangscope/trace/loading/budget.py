"""What reading one job may cost: memory, time, and bytes written to disk.

What exceeds it is left out, with a line that says so, and the rest is judged. Evidence may be
damaged or hostile: a megabyte that inflates to a terabyte, a file that is all holes, a ring that
says it holds millions of records.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

GIB = 1 << 30
_VALUES_PER_BYTE = 16
"""Values in memory take ten to fifteen times the size of their pickle."""
_SMALL = 64 << 20
"""Below this many bytes, holes do no harm."""
_MOST_HOLES = 64
"""A file system that compresses stores a log in a tenth; nothing stores it in one part of so
many."""
_MOST_WRITTEN = 8 * GIB
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(slots=True)
class Budget:
    """What is left for the job that is being read; passed to whatever takes bytes in.

    Parameters
    ----------
    memory_bytes:
        Memory for what is read, all files and reading processes together.
    seconds:
        Time after which no other file is begun.
    written_bytes:
        Disk space for what is unpacked from archives, or brought from URLs and standard input.
    """

    memory_bytes: int
    seconds: float
    written_bytes: int
    _deadline_s: float = field(init=False)
    """By the monotonic clock."""
    _rows_bytes: int = field(init=False, default=0)
    """Taken by the records of rings so far."""

    def __post_init__(self) -> None:
        self._deadline_s = time.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        """Whether no other file should be begun."""
        return time.monotonic() >= self._deadline_s

    @property
    def over_text(self) -> str:
        """Why a file was not read after that."""
        return f"not read: {self.seconds:g} s of reading are over; allow more with --max-seconds"

    @property
    def exhausted_text(self) -> str:
        """Why no more of a file is written; empty while there is time and space."""
        if self.written_bytes < 0:
            return "more than may be written to disk; allow more with --max-unpacked"
        return self.over_text if self.is_over else ""

    def refusal(self, status: os.stat_result, *, taken_bytes: int, is_parsed: bool) -> str:
        """Why a file is not read; empty if it may be.

        Parameters
        ----------
        status:
            Of the file.
        taken_bytes:
            How much of it is read at once.
        is_parsed:
            Whether it is parsed as a whole, rather than stored as it is.
        """
        stored_bytes = getattr(status, "st_blocks", taken_bytes) * 512
        if taken_bytes > _SMALL and stored_bytes * _MOST_HOLES < taken_bytes:
            return f"mostly holes: {taken_bytes >> 20} MiB with hardly any data"
        more = "allow more with --max-memory"
        if is_parsed and taken_bytes * _VALUES_PER_BYTE > self.memory_bytes:
            return f"{taken_bytes >> 20} MiB, more than can be read in memory; {more}"
        if not is_parsed:
            if self._rows_bytes + taken_bytes > self.memory_bytes:
                return f"its records do not fit into memory; {more}"
            self._rows_bytes += taken_bytes
        return ""

    def memory_of_reader(self, readers: int, file_bytes: int) -> int:
        """The memory of one of several reading processes whose largest file has this size."""
        return max(_READER_FLOOR, min(self.memory_bytes // readers, 40 * file_bytes))


_READER_FLOOR = 768 << 20
"""A reading process needs some memory for itself."""


def default_budget(
    memory_gib: float | None = None,
    seconds: float | None = None,
    unpacked_gib: float | None = None,
) -> Budget:
    """What this machine can give: half of the memory and disk space that are free, ten minutes.

    Each argument replaces one of them.
    """
    memory = int(memory_gib * GIB) if memory_gib is not None else _free_memory() // 2
    written = int(unpacked_gib * GIB) if unpacked_gib is not None else _free_disk() // 2
    if unpacked_gib is None:
        written = min(written, _MOST_WRITTEN)
    return Budget(memory, 600.0 if seconds is None else seconds, written)


def _free_memory() -> int:
    """Memory that this process may still take, in bytes; 4 GiB if nothing says."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    except (OSError, ValueError, IndexError):
        pass
    for path in _CGROUP_LIMITS:
        try:
            found.append(int(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError):  # "max"
            continue
    return min(found, default=4 * GIB)


def _free_disk() -> int:
    """Free space for temporary files, in bytes."""
    try:
        return shutil.disk_usage(tempfile.gettempdir()).free
    except OSError:
        return 0
