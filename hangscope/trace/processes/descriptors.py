"""What a process's open file descriptors refer to, and which processes hold a pipe or a socket."""

from __future__ import annotations

import os
from pathlib import Path

from hangscope.trace.processes.procfs import PROC, lines_of, process_ids

_MOST_DESCRIPTORS = 20_000
"""On a machine with more, the search for a pipe's other end is abandoned."""


def target_of(pid: int, descriptor: int, proc: Path = PROC) -> str:
    """The target of a descriptor, as named in ``/proc``; empty if it has none."""
    try:
        return os.readlink(f"{proc}/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def descriptors_of(pid: int | str, proc: Path = PROC) -> list[int]:
    """The open descriptors of a process; empty if they may not be read."""
    try:
        return [int(name) for name in os.listdir(f"{proc}/{pid}/fd") if name.isdecimal()]
    except OSError:
        return []


def processes_at_other_end(
    pid: int, pipe: str, writes: bool, proc: Path = PROC
) -> list[int] | None:
    """Processes, perhaps ``pid`` itself, that hold the end of a pipe that ``pid`` does not wait at.

    None if that cannot be determined: other processes' descriptors may be hidden, or too many.
    """
    found, looked = [], 0
    for name in sorted(os.listdir(proc)):
        if not name.isdecimal():
            continue
        try:
            descriptors = os.listdir(proc / name / "fd")
        except FileNotFoundError:
            continue  # the process has just ended
        except OSError:
            return None
        looked += len(descriptors)
        if looked > _MOST_DESCRIPTORS:
            return None
        for descriptor in descriptors:
            if descriptor.isdecimal() and target_of(int(name), int(descriptor), proc) == pipe:
                reads = _mode(name, descriptor, proc) != os.O_WRONLY
                if reads == writes and int(name) not in found:
                    found.append(int(name))
    return found


def _mode(pid: str, descriptor: str, proc: Path) -> int:
    """``os.O_RDONLY``, ``os.O_WRONLY`` or ``os.O_RDWR``; -1 if unknown."""
    for line in lines_of(proc / pid / "fdinfo" / descriptor):
        key, _, value = line.partition(":")
        if key == "flags":
            try:
                return int(value, 8) & os.O_ACCMODE
            except ValueError:
                return -1
    return -1


def holder_of(target: str, first: int, proc: Path = PROC) -> int | None:
    """A process with a descriptor of that target; ``first``, if it is one, otherwise the oldest.

    None if none is found: descriptors of others may be hidden, or too many.
    """
    looked = 0
    for pid in [first, *process_ids(proc)]:
        descriptors = descriptors_of(pid, proc)
        looked += len(descriptors)
        if looked > _MOST_DESCRIPTORS:
            return None
        if any(target_of(pid, descriptor, proc) == target for descriptor in descriptors):
            return pid
    return None
