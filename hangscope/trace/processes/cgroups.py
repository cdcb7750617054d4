"""Finds a process's control group files, for either cgroup version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hangscope.trace.processes.procfs import PROC, lines_of

GROUPS = Path("/sys/fs/cgroup")
_UNIFIED = ("", "unified")
"""Where the unified hierarchy of version 2 is mounted, alone or beside those of version 1."""


def controller_files(
    process: int | str,
    controller: str,
    names: tuple[str, str],
    proc: Path = PROC,
    groups: Path = GROUPS,
) -> Iterator[Path]:
    """Possible paths of a controller's file, in the order in which the process lists its groups.

    Parameters
    ----------
    process:
        Its id, or ``"self"``.
    names:
        The file's names in version 2 and in version 1.
    """
    for line in lines_of(proc / str(process) / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inside = path.lstrip("/")
        if not controllers:
            yield from (groups / root / inside / names[0] for root in _UNIFIED)
        elif controller in controllers.split(","):
            yield groups / controller / inside / names[1]


def cpu_limit(pid: int, proc: Path = PROC, groups: Path = GROUPS, *, below: float = 1.0) -> str:
    """The CPU quota of a process, in words; empty for ``below`` or more."""
    shares = []
    names = ("cpu.max", "cpu.cfs_quota_us")
    for file in controller_files(pid, "cpu", names, proc, groups):
        words = " ".join(lines_of(file)).split()
        if file.name == names[1]:
            words += " ".join(lines_of(file.with_name("cpu.cfs_period_us"))).split()
        try:
            quota, period = map(int, words[:2])
        except ValueError:  # no such file, or no limit
            continue
        if 0 < quota < period:
            shares.append(quota / period)
    least = min(shares, default=1.0)
    return f"{least:.1%} of one" if least < below else ""
