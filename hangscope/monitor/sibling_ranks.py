"""Ranks that no launcher has numbered, found among the other children of their ranks' parent.

Processes that a script starts itself (``mp.spawn``, a loop over ``Process`` or ``python train.py
--rank N``) record from ``init_process_group`` on: before that, nothing says which rank they are.
But they were started in the same way as the ranks that do record, and in the order of their ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hangscope.monitor.process_table import ProcessRow
from hangscope.trace.processes.procfs import PROC

_NUMBER = re.compile(rb"\d+")


def sibling_ranks(
    table: Mapping[int, ProcessRow],
    recorded: Mapping[int, int],
    world_size: int,
    proc: Path = PROC,
) -> dict[int, int]:
    """The process ids of the ranks that do not record.

    Empty if it is not clear which processes these are: one parent must have started exactly as
    many processes with one command (apart from numbers in it) as the job has ranks, and those that
    record in the order of their ranks.

    Parameters
    ----------
    table:
        The process table.
    recorded:
        The process ids of the ranks that record.
    world_size:
        Number of ranks of the job.
    proc:
        Where the process table is mounted.
    """
    missing = sorted(set(range(world_size)) - recorded.keys())
    parents = {table[pid].parent if pid in table else 0 for pid in recorded.values()}
    commands = {_command(pid, proc) for pid in recorded.values()}
    if not missing or len(parents) != 1 or len(commands) != 1 or b"" in commands:
        return {}
    (parent,), (command,) = parents, commands
    siblings = sorted(
        (row.start_ticks, pid)
        for pid, row in table.items()
        if parent and row.parent == parent and _command(pid, proc) == command
    )
    if len(siblings) != world_size:
        return {}
    started = [pid for _, pid in siblings]
    in_order = all(started[rank] == pid for rank, pid in recorded.items())
    return {rank: started[rank] for rank in missing} if in_order else {}


def _command(pid: int, proc: Path) -> bytes:
    """The command line of a process without its numbers; empty if it has ended."""
    try:
        return _NUMBER.sub(b"#", (proc / str(pid) / "cmdline").read_bytes())
    except OSError:
        return b""
