"""Takes over when the process in which a monitor runs dies, by the OOM killer say.

`hangscope run` is the parent of its command, so that the kernel lets its monitor look at the ranks;
it cannot be started again by anybody. So a small process waits beside it, for a pipe to close.
Imports only what that needs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from hangscope.ring.process_identity import START_TICKS, stat_fields
from hangscope.trace.processes.signals import exists

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_GOODBYE = b"."


class Successor:
    """The process that waits; made by `start_successor`."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe = pipe

    def watch(self, pid: int, started_ticks: int) -> None:
        """Name the command, whose end it will wait for."""
        self._write(f"{pid} {started_ticks}\n".encode())

    def dismiss(self) -> None:
        """The watch is over: the other process ends without a word."""
        self._write(_GOODBYE)
        os.close(self._pipe)
        try:
            os.waitpid(self._pid, 0)
        except ChildProcessError:
            pass

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._pipe, data)
        except OSError:
            pass  # it is gone


def start_successor(take_over: Callable[[int, int], None]) -> Successor | None:
    """Start the process that waits; None if there can be none.

    ``take_over(pid, started_ticks)`` is called in it if this process dies while the command lives.
    """
    try:
        end, pipe = os.pipe()
        pid = os.fork()
    except OSError:
        return None
    if pid:
        os.close(end)
        return Successor(pid, pipe)
    try:
        os.close(pipe)
        _wait(end, take_over)
    finally:
        os._exit(0)


def _wait(end: int, take_over: Callable[[int, int], None]) -> None:
    os.setsid()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    said = b""
    while block := os.read(end, 4096):
        said += block
    command, _, goodbye = said.partition(b"\n")
    if command and not goodbye:
        pid, started_ticks = map(int, command.split())
        if lives(pid, started_ticks):
            take_over(pid, started_ticks)


def lives(pid: int, started_ticks: int) -> bool:
    """Whether the process that once had this id and start time (0: unknown) has not ended."""
    fields = stat_fields(pid)
    if fields is None:
        return exists(pid) is not False
    return started_ticks in (0, int(fields[START_TICKS])) and fields[0] not in "ZX"
