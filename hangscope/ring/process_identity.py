"""What identifies a process beyond its pid: start time, boot id, pid namespace and environment.

The writer stores them in the ring's header; a reader compares them with what it finds itself.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

OWNER = "HANGSCOPE_INTERNAL_OWNER"
"""Environment marker: pid of the rank that records; children that inherit it do not record. A
program that replaces the rank's in the same process inherits it, too."""
START_TICKS = 19
"""Index of the start time among the fields of `stat_fields`."""


def stat_fields(pid: int) -> list[str] | None:
    """The fields of ``/proc/<pid>/stat`` after the command name; None if the process is gone."""
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
    """How many time slices a process's main thread has run; None if the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[2])
    except (OSError, ValueError, IndexError):
        return None


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; detects a reused pid. 0 if it is gone."""
    fields = stat_fields(pid)
    try:
        return int(fields[START_TICKS]) if fields is not None else 0
    except ValueError:
        return 0


def boot_id() -> str:
    """The machine's boot id: pids mean nothing on any other. Empty if it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def pid_namespace(process: str | Path = "/proc/self") -> int:
    """Inode of a process's pid namespace: pids mean nothing in any other. 0 if not known."""
    try:
        return os.stat(f"{process}/ns/pid").st_ino
    except OSError:
        return 0


def environment_of(process: str | Path) -> dict[str, str]:
    """The environment that a process (``/proc/<pid>``) was started with.

    Empty if the process is gone or may not be read.
    """
    try:
        raw = Path(process, "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in os.fsdecode(raw).split("\0"))
    return {name: value for name, _, value in pairs if name}


def machine_id(boot: str, namespace: int) -> str:
    """A short name for a boot id and pid namespace, since hosts may share a name.

    Empty if not known. Without a namespace, the boot id already is such a name (in a copied ring).
    """
    if not boot or not namespace:
        return boot
    return hashlib.blake2b(f"{boot}/{namespace}".encode(), digest_size=4).hexdigest()
