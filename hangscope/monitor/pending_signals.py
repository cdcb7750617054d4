"""Whether a stop signal has been sent to a process yet, as ``/proc`` shows it.

From the moment a fatal signal is sent, the kernel lists it as pending or the process as exiting. If
one process ended by SIGTERM while another shows neither, the first was signalled before the second.
That tells a launcher reacting to one rank's end from somebody stopping the whole job at once.

Source: ``complete_signal`` and ``get_signal`` in the kernel's ``kernel/signal.c``; the fields are
those of proc_pid_status(5) and proc_pid_stat(5).
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

from hangscope.trace.processes.procfs import PROC, stat_of, status_of

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
_EXITING = 0x4
"""``PF_EXITING`` of a process's flags."""
_FLAGS = 6
"""Index of the flags among the fields after the name in ``/proc/<pid>/stat``."""


def is_unsignalled(pid: int, number: int, proc: Path = PROC) -> bool:
    """Whether a process would be ended by the signal and has been sent no fatal signal yet.

    False if that cannot be seen, or if the process handles the signal: a handler may be running.
    """
    masks, fields = _masks(pid, proc), stat_of(pid, proc)
    try:
        state, flags = fields[0], int(fields[_FLAGS])
    except (ValueError, IndexError):
        return False
    if masks is None or state in "ZX" or flags & _EXITING or masks.handled & _bit(number):
        return False
    return not any(masks.sent & _bit(ending) for ending in _ENDING)


def is_signalled(pid: int, number: int, proc: Path = PROC) -> bool:
    """Whether a live process has the signal pending and neither handles nor ignores it."""
    masks = _masks(pid, proc)
    return masks is not None and bool(masks.sent & ~masks.handled & _bit(number))


class _Masks(NamedTuple):
    """Signal masks of a process, one bit per signal."""

    sent: int
    """Pending."""
    handled: int
    """Ignored, or caught by the program."""


def _masks(pid: int, proc: Path) -> _Masks | None:
    status = status_of(pid, proc)
    try:
        pending, own, ignored, caught = (
            int(status[name], 16) for name in ("ShdPnd", "SigPnd", "SigIgn", "SigCgt")
        )
    except (KeyError, ValueError):
        return None
    return _Masks(pending | own, ignored | caught)


def _bit(number: int) -> int:
    return 1 << (number - 1)
