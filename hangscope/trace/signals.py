"""Signals by the numbers that Linux gives them.

A job runs on Linux. The machine that reads what it left behind may be another, on which the same
number stands for another signal, or for none.
"""

from __future__ import annotations

_NAMES = (
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL",
    "SIGUSR1", "SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGCHLD",
    "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGXCPU", "SIGXFSZ",
    "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGPWR", "SIGSYS",
)  # fmt: skip
"""Of the signals 1 to 31, on x86 and ARM."""
_NUMBERS = {name: number for number, name in enumerate(_NAMES, start=1)}

SIGHUP, SIGINT, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM = (
    1, 2, 4, 6, 7, 8, 9, 11, 15,
)  # fmt: skip

FAULTS = (SIGILL, SIGBUS, SIGFPE, SIGSEGV)
"""What a process gets for an instruction of its own, and not because somebody sent it."""

BY_DESCRIPTION = {
    "killed": SIGKILL,
    "terminated": SIGTERM,
    "aborted": SIGABRT,
    "segmentation fault": SIGSEGV,
    "bus error": SIGBUS,
    "floating point exception": SIGFPE,
}
"""By the words of ``strsignal``, which shells and launchers print, in lower case."""


def number_of(name: str) -> int | None:
    """The number of ``SIGTERM`` or ``TERM``; None for a name that is none."""
    return _NUMBERS.get(f"SIG{name.removeprefix('SIG')}")


def codes_of(number: int) -> tuple[int, int]:
    """The exit statuses that stand for a signal: Python's ``subprocess`` and shells write them."""
    return -number, 128 + number


def name_of(number: int) -> str:
    """``SIGTERM`` for 15; ``signal 34`` for one that has no name."""
    return _NAMES[number - 1] if 0 < number <= len(_NAMES) else f"signal {number}"
