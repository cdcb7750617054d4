"""What keeps a process from running that is there and has not been stopped by a signal.

Asked only of a process whose heartbeat is late, or that the kernel shows as traced: each answer
costs a few small files of ``/proc`` and of the control groups.
"""

from __future__ import annotations

import os
from pathlib import Path

from hangscope.trace.processes.cgroups import GROUPS, files_of
from hangscope.trace.processes.procfs import PROC, lines_of, status_of

FREEZER = "the freezer of its control group"
DUMPS_CORE = "killed by a signal, and its core dump is still being written"
_FROZEN = ("frozen 1", "FROZEN", "FREEZING")
"""What the group says of itself, in version 2 and in version 1."""


def tracer_of(pid: int, proc: Path = PROC) -> str | None:
    """Who has attached to a process: ``gdb (pid 4711)``; None where nobody is to be seen."""
    tracer = status_of(pid, proc).get("TracerPid")
    if not tracer or tracer == "0":
        return None
    try:
        name = (proc / tracer / "comm").read_text(errors="replace").strip()
    except OSError:
        name = "a debugger"
    return f"{name} (pid {tracer})"


def is_dumping_core(pid: int, proc: Path = PROC) -> bool:
    """Whether the kernel is writing the memory of a process that a signal has ended."""
    return status_of(pid, proc).get("CoreDumping") == "1"


def is_frozen(pid: int, proc: Path = PROC, groups: Path = GROUPS) -> bool:
    """Whether the control group of a process is frozen, as a paused container's is."""
    files = files_of(pid, "freezer", ("cgroup.events", "freezer.state"), proc, groups)
    return any(line in _FROZEN for file in files for line in lines_of(file))


def runs_another_program(pid: int, file: str, proc: Path = PROC) -> bool:
    """Whether a process has replaced its program (``exec``): it no longer maps a file that it had.

    Parameters
    ----------
    file:
        What its program has mapped for good.
    """
    try:
        inode = str(os.stat(file).st_ino)
    except OSError:
        return False
    lines = lines_of(proc / str(pid) / "maps")
    return bool(lines) and all(line.split(maxsplit=5)[4:5] != [inode] for line in lines)
