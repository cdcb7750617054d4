"""What makes a pid mean one process: when it started, on which boot, in which namespace.

The writer notes it in the ring's header; a reader compares it with what it sees itself.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

START_TICKS = 19
"""Index of the start time among the fields of `stat_fields`."""


def stat_fields(pid: int) -> list[str] | None:
    """The fields of ``/proc/<pid>/stat`` after the command name; None where it is gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            raw = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
        fields = raw[raw.rindex(b")") + 2 :].decode("ascii", "replace").split()
        return fields if len(fields) > START_TICKS + 1 else None
    except (OSError, ValueError):
        return None


def slices(pid: int) -> int | None:
    """How often the main thread of a process was given a processor; None where nothing tells."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[2])
    except (OSError, ValueError, IndexError):
        return None


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot: tells a pid from its reuse. 0: gone."""
    fields = stat_fields(pid)
    try:
        return int(fields[START_TICKS]) if fields is not None else 0
    except ValueError:
        return 0


def boot_id() -> str:
    """The machine's boot id: pids mean nothing on another. Empty where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace(process: str | Path = "/proc/self") -> int:
    """Inode of a process's pid namespace: pids mean nothing in another. 0: not known."""
    try:
        return os.stat(f"{process}/ns/pid").st_ino
    except OSError:
        return 0


def machine_id(boot: str, namespace: int) -> str:
    """A short name for a boot and pid namespace: hosts may be named alike. Empty: not known.

    What stands for the boot without a namespace is such a name already, in a copy of a ring.
    """
    if not boot or not namespace:
        return boot
    return hashlib.blake2b(f"{boot}/{namespace}".encode(), digest_size=4).hexdigest()
