"""The process table: parent, processor time and start of every process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hangscope.ring.process_identity import START_TICKS
from hangscope.trace.processes.procfs import PROC, process_ids, stat_of

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcessRow(NamedTuple):
    """One process; times in clock ticks (`TICKS_PER_SECOND`)."""

    parent: int
    own_ticks: int
    """User and system time of its own."""
    reaped_ticks: int
    """User and system time of its children that have ended and were waited for."""
    start_ticks: int
    """When it started, since boot."""


def process_table(proc: Path = PROC) -> dict[int, ProcessRow]:
    """Every process by its id, see proc_pid_stat(5)."""
    table = {}
    for pid in process_ids(proc):
        words = stat_of(pid, proc)
        try:
            # After the name: state, ppid, ..., utime, stime, cutime, cstime (11th to 14th).
            table[pid] = ProcessRow(
                parent=int(words[1]),
                own_ticks=sum(map(int, words[11:13])),
                reaped_ticks=sum(map(int, words[13:15])),
                start_ticks=int(words[START_TICKS]),
            )
        except (ValueError, IndexError):
            continue  # it has just ended
    return table
