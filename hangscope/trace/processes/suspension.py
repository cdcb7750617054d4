"""Finds out what suspends a process that is not stopped by a signal.

Queried only for a process whose heartbeat is late or that the kernel reports as traced: each answer
costs a few small files of ``/proc`` and of the control groups.
"""

from __future__ import annotations

import os
from pathlib import Path

from hangscope.trace.processes.cgroups import GROUPS, controller_files
from hangscope.trace.processes.procfs import PROC, lines_of, status_of

FREEZER = "the freezer of its control group"
DUMPS_CORE = "killed by a signal, and its core dump is still being written"
_FROZEN = ("frozen 1", "FROZEN", "FREEZING")
"""States of a frozen group, in version 2 and in version 1."""


def tracer_of(pid: int, proc: Path = PROC) -> str | None:
    """The tracer attached to a process: ``gdb (pid 4711)``; None if none is visible."""
    tracer = status_of(pid, proc).get("TracerPid")
    if not tracer or tracer == "0":
        return None
    try:
        name = (proc / tracer / "comm").read_text(errors="replace").strip()
    except OSError:
        name = "a debugger"
    return f"{name} (pid {tracer})"


def is_dumping_core(pid: int, proc: Path = PROC) -> bool:
    """Whether the kernel is writing the core dump of a process killed by a signal."""
    return status_of(pid, proc).get("CoreDumping") == "1"


def is_frozen(pid: int, proc: Path = PROC, groups: Path = GROUPS) -> bool:
    """Whether the control group of a process is frozen, as that of a paused container is."""
    files = controller_files(pid, "freezer", ("cgroup.events", "freezer.state"), proc, groups)
    return any(line in _FROZEN for file in files for line in lines_of(file))


def has_execed(pid: int, file: str, proc: Path = PROC) -> bool:
    """Whether a process has replaced its program: it no longer maps a file that it had mapped.

    Parameters
    ----------
    file:
        A file that its program keeps mapped.
    """
    try:
        inode = str(os.stat(file).st_ino)
    except OSError:
        return False
    lines = lines_of(proc / str(pid) / "maps")
    return bool(lines) and all(line.split(maxsplit=5)[4:5] != [inode] for line in lines)
