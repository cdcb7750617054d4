"""Reads small files of ``/proc``; those that cannot be read count as empty."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def process_ids(proc: Path = PROC) -> list[int]:
    """The ids of all processes, lowest first."""
    return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())


def lines_of(path: Path) -> list[str]:
    """The lines of a small file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def stat_of(pid: int | str, proc: Path = PROC) -> list[str]:
    """The fields of a process's ``stat`` after its name, which may contain blanks and parentheses.

    The first is its state, field 3 of proc_pid_stat(5).
    """
    return " ".join(lines_of(proc / str(pid) / "stat")).rpartition(")")[2].split()


def status_of(pid: int, proc: Path = PROC) -> dict[str, str]:
    """The fields of a process's ``status`` by name, see proc_pid_status(5)."""
    split = (line.partition(":") for line in lines_of(proc / str(pid) / "status"))
    return {name: value.strip() for name, _, value in split}
