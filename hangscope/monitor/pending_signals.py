"""Which processes have not been told to stop yet.

A signal that ends a process does so as it is sent: from then on the kernel lists it as pending, or
the process as exiting. So where one process has ended by SIGTERM, and another one shows neither,
the first was told before: a launcher that answers an end is told apart from somebody who stops all.

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
"""Where they stand behind the name in ``/proc/<pid>/stat``."""


def is_untold(pid: int, number: int, proc: Path = PROC) -> bool:
    """Whether a signal would end a process, and none that does has been sent to it.

    False where that cannot be seen, or where it may be busy with an answer of its own.
    """
    masks, fields = _masks(pid, proc), stat_of(pid, proc)
    try:
        state, flags = fields[0], int(fields[_FLAGS])
    except (ValueError, IndexError):
        return False
    if masks is None or state in "ZX" or flags & _EXITING or masks.handled & _bit(number):
        return False
    return not any(masks.sent & _bit(ending) for ending in _ENDING)


def is_told(pid: int, number: int, proc: Path = PROC) -> bool:
    """Whether a signal that nobody deals with has been sent to a process that is not yet gone."""
    masks = _masks(pid, proc)
    return masks is not None and bool(masks.sent & ~masks.handled & _bit(number))


class _Masks(NamedTuple):
    """Signals of a process, a bit each."""

    sent: int
    """Not dealt with yet."""
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
