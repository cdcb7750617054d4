"""How processes ended, before their ranks are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hangscope.trace.job_log.evidence.process_ranks import Process
from hangscope.trace.job_log.lines.line import UNKNOWN_MACHINE, LogLine, Machine


class LauncherFailure(NamedTuple):
    """A failed process, as reported by its node's launcher."""

    local_rank: int
    pid: int | None
    exit_code: int
    """Negative for the signal that ended it."""
    at_ns: int
    machine: Machine = UNKNOWN_MACHINE
    """The machine of the launcher, and hence of the process."""
    line: int = 0
    """Where the log says so."""


class TaskEnd(NamedTuple):
    """The end of a task, as reported by a scheduler. A task is a rank, or a node with several."""

    task: int
    host: str
    exit_code: int | None
    signal: int | None
    at_ns: int
    oom: bool = False
    """It was killed for its memory use."""


@dataclass(slots=True)
class Pod:
    """A pod of Kubernetes, as far as its description has been read."""

    name: str
    line: LogLine
    at_ns: int
    node: str = ""
    ended: str = ""
    """Why its container ended; empty while it runs."""
    code: int = 0
    rank: int | None = None
    """Its variable RANK: a rank if the pod has one process, else the number of a node."""
    devices: int = 1


@dataclass(slots=True)
class Ends:
    """How processes ended, according to launchers, schedulers and kernels.

    They identify processes by pid, local rank or task; `resolving` finds the ranks.
    """

    failures: list[LauncherFailure] = field(default_factory=list)
    of_tasks: list[TaskEnd] = field(default_factory=list)
    agents: set[Process] = field(default_factory=set)
    """Torchrun agents that mention their workers; each node has one."""
    agents_ns: int = 0
    """The latest time at which an agent has printed something."""
    agents_go_back: bool = False
    """An agent's time is much earlier than a previous one: the logs of several are concatenated."""
    step_ended: bool = False
    """The scheduler has announced that it ends the job: processes killed later are victims."""
    stopped_tasks: set[int] = field(default_factory=set)
    stopped: set[Process] = field(default_factory=set)
    out_of_memory: set[Process] = field(default_factory=set)
    found_dead: dict[Process, int] = field(default_factory=dict)
    """Processes that are only known to have died, and when."""
    pods: list[Pod] = field(default_factory=list)
