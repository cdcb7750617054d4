"""Small files of ``/proc``: read whole, and empty where they cannot be read."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def lines_of(path: Path) -> list[str]:
    """The lines of a small file; none where it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def stat_of(pid: int | str, proc: Path = PROC) -> list[str]:
    """The fields of a process's ``stat`` behind its name, which may hold blanks and brackets.

    The first is its state, field 3 of proc_pid_stat(5).
    """
    return " ".join(lines_of(proc / str(pid) / "stat")).rpartition(")")[2].split()


def status_of(pid: int, proc: Path = PROC) -> dict[str, str]:
    """The fields of a process's ``status``, by name as in proc_pid_status(5)."""
    split = (line.partition(":") for line in lines_of(proc / str(pid) / "status"))
    return {name: value.strip() for name, _, value in split}
