"""How processes ended, before it is known which ranks they were."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hangscope.trace.job_log.lines.line import SOMEWHERE, Machine
from hangscope.trace.job_log.readers.process_ranks import Process


class LauncherFailure(NamedTuple):
    """A process that failed, as the launcher of its node reports it."""

    local_rank: int
    pid: int | None
    exit_code: int
    """Negative: the signal that ended it."""
    at_ns: int
    machine: Machine = SOMEWHERE
    """That of the launcher, and so of the process."""


class TaskEnd(NamedTuple):
    """A task that ended, as a scheduler reports it. A task is a rank, or a node of several."""

    task: int
    host: str
    exit_code: int | None
    signal: int | None
    at_ns: int
    oom: bool = False
    """It was killed for the memory it took."""


@dataclass(slots=True)
class Ends:
    """How processes ended, as launchers, schedulers and kernels tell it.

    They speak of process ids, local ranks and tasks; `resolving` finds out which ranks those are.
    """

    failures: list[LauncherFailure] = field(default_factory=list)
    of_tasks: list[TaskEnd] = field(default_factory=list)
    agents: set[Process] = field(default_factory=set)
    """Those of torchrun's that speak of their workers: each node has one of its own."""
    agents_ns: int = 0
    """The latest moment at which one of them has spoken."""
    agents_go_back: bool = False
    """One has spoken of what was well before: logs lie one behind the other."""
    step_ended: bool = False
    """The scheduler has said that it ends the job: whom it kills after that is no cause."""
    stopped_tasks: set[int] = field(default_factory=set)
    stopped: set[Process] = field(default_factory=set)
    out_of_memory: set[Process] = field(default_factory=set)
    found_dead: dict[Process, int] = field(default_factory=dict)
    """Processes of which it is only said that they died, and when."""
