"""What keeps a process from running that is there and has not been stopped by a signal.

Asked only of a process whose heartbeat is late, or that the kernel shows as traced: each answer
costs a few small files of ``/proc`` and of the control groups.
"""

from __future__ import annotations

import re
from pathlib import Path

FREEZER = "the freezer of its control group"
DUMPS_CORE = "killed by a signal, and its core dump is still being written"
_GROUPS = Path("/sys/fs/cgroup")
_UNIFIED = ("", "unified")
"""Where the one hierarchy of control groups (v2) lies, alone or beside those of v1."""


def tracer_of(pid: int, proc: Path = Path("/proc")) -> str | None:
    """Who has attached to a process: ``gdb (pid 4711)``; None where nobody is to be seen."""
    tracer = _field(proc / str(pid) / "status", "TracerPid")
    if not tracer or tracer == "0":
        return None
    try:
        name = (proc / tracer / "comm").read_text(errors="replace").strip()
    except OSError:
        name = "a debugger"
    return f"{name} (pid {tracer})"


def is_dumping_core(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether the kernel is writing the memory of a process that a signal has ended."""
    return _field(proc / str(pid) / "status", "CoreDumping") == "1"


def is_frozen(pid: int, proc: Path = Path("/proc"), groups: Path = _GROUPS) -> bool:
    """Whether the control group of a process is frozen, as a paused container's is."""
    for line in _lines(proc / str(pid) / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inside = path.lstrip("/")
        if not controllers:
            events = (groups / root / inside / "cgroup.events" for root in _UNIFIED)
            if any("frozen 1" in _lines(file) for file in events):
                return True
        elif "freezer" in controllers.split(","):
            state = _lines(groups / "freezer" / inside / "freezer.state")
            if state in (["FROZEN"], ["FREEZING"]):
                return True
    return False


def _field(path: Path, name: str) -> str:
    found = (re.fullmatch(rf"{name}:\s*(\S+)", line) for line in _lines(path))
    return next((match[1] for match in found if match), "")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
