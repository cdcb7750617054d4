"""Observes whether a process exists, and in which state.

Only meaningful on the same machine, in the same pid namespace and since the same boot; otherwise
everything is reported as unknown.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hangscope.ring import process_identity
from hangscope.trace.processes.signals import exists
from hangscope.trace.processes.suspension import tracer_of

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk-sleep",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombie",
    "X": "gone",
    "I": "sleeping",
}


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """One observation of a process; ``alive`` is None if it cannot be known from here."""

    alive: bool | None = None
    state: str | None = None
    cpu_ticks: int = 0
    """User and system time used so far, in clock ticks."""
    exit_code: int | None = None
    """Wait status of a zombie, as kept by the kernel."""
    slices: int | None = None
    """How often its main thread has been scheduled; None if unknown."""
    held_by: str | None = None
    """What keeps it from running, if not a signal."""


def look_at(*, pid: int, start_ticks: int, boot_id: str, pid_namespace: int) -> ProcessLook:
    """Observe a process by the identity that it once recorded."""
    return look_here(pid, start_ticks) if is_local(boot_id, pid_namespace) else ProcessLook()


def look_here(pid: int, start_ticks: int) -> ProcessLook:
    """Observe a process of this machine and pid namespace (see `is_local`)."""
    fields = process_identity.stat_fields(pid)
    if fields is None:
        # What may not be read here (no /proc, no descriptor left) has not ended for that.
        return ProcessLook(alive=False, state="gone") if exists(pid) is False else ProcessLook()
    if start_ticks and int(fields[process_identity.START_TICKS]) != start_ticks:
        return ProcessLook(alive=False, state="gone")
    state = _STATES.get(fields[0], "running")
    ticks = int(fields[11]) + int(fields[12])
    if state in ("zombie", "gone"):
        status = int(fields[49]) if len(fields) > 49 else 0
        return ProcessLook(alive=False, state=state, cpu_ticks=ticks, exit_code=status)
    tracer = tracer_of(pid) if fields[0] == "t" else None
    slices = process_identity.slices(pid)
    return ProcessLook(alive=True, state=state, cpu_ticks=ticks, slices=slices, held_by=tracer)


def is_local(boot_id: str, pid_namespace: int) -> bool:
    """Whether pids of that boot and namespace are valid for this process."""
    return (boot_id, pid_namespace) == _own_namespace()


def is_remote(boot_id: str, pid_namespace: int) -> bool:
    """Whether pids of that boot and namespace are known to be invalid for this process."""
    own = _own_namespace()
    return own is not None and bool(boot_id and pid_namespace) and (boot_id, pid_namespace) != own


@functools.lru_cache(1)
def _own_namespace() -> tuple[str, int] | None:
    """This process's boot id and pid namespace, which never change; None if either is unknown."""
    boot, namespace = process_identity.boot_id(), process_identity.pid_namespace()
    return (boot, namespace) if boot and namespace else None
