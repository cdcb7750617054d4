"""Signal numbers and names as on Linux.

Jobs run on Linux. Their files may be analysed on another system, where the same number is another
signal or none.
"""

from __future__ import annotations

_NAMES = (
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL",
    "SIGUSR1", "SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGCHLD",
    "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGXCPU", "SIGXFSZ",
    "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGPWR", "SIGSYS",
)  # fmt: skip
"""Signals 1 to 31, on x86 and ARM."""
_NUMBERS = {name: number for number, name in enumerate(_NAMES, start=1)}

SIGHUP, SIGINT, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM = (
    1, 2, 4, 6, 7, 8, 9, 11, 15,
)  # fmt: skip

FAULTS = (SIGILL, SIGBUS, SIGFPE, SIGSEGV)
"""Signals caused by the process's own instructions rather than sent to it."""

BY_DESCRIPTION = {
    "killed": SIGKILL,
    "terminated": SIGTERM,
    "aborted": SIGABRT,
    "segmentation fault": SIGSEGV,
    "bus error": SIGBUS,
    "illegal instruction": SIGILL,
    "floating point exception": SIGFPE,
}
"""Signals by the lower-case text of ``strsignal``, which shells and launchers print."""


def number_of(name: str) -> int | None:
    """The number of ``SIGTERM`` or ``TERM``; None if there is no such signal."""
    return _NUMBERS.get(f"SIG{name.removeprefix('SIG')}")


def codes_of(number: int) -> tuple[int, int]:
    """The exit statuses for a signal: as in Python's ``subprocess``, and as in shells."""
    return -number, 128 + number


def name_of(number: int) -> str:
    """``SIGTERM`` for 15; ``signal 34`` for a number without a name."""
    return _NAMES[number - 1] if 0 < number <= len(_NAMES) else f"signal {number}"
