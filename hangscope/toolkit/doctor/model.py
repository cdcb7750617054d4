"""Inputs and findings of the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hangscope.toolkit.environments.interfaces import Interface
from hangscope.toolkit.environments.variables import Version

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. ``check`` is a short stable name, ``playbook`` one of D1 to D23."""

    level: str
    check: str
    what: str
    fix: str
    playbook: str = ""
    where: str = ""
    """``file:line`` if the cause is in a file."""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as the driver lists it. ``index`` is the driver's."""

    index: int
    name: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A rank of another job on this host."""

    pid: int
    job: str
    """Identity of its job, from its environment."""
    visible: str | None = None
    """Its CUDA_VISIBLE_DEVICES; ``None`` if not set."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that the checks of one process look at (see `surroundings.read_surroundings`)."""

    env: Mapping[str, str]
    torch_version: str = ""
    version: Version = (99, 0)
    devices: tuple[Device, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    command: tuple[str, ...] = ()
    """The launch command the user is about to run; empty if none was given."""
    shm_bytes: int | None = None
    """Free space in /dev/shm; ``None`` if that does not exist."""
    files_limit: int | None = None
    home: str = ""
    cwd: str = "."
    is_compiled: bool = True
    """Whether ``hangscope compile`` has been run, for this torch or another."""


@dataclass(frozen=True, slots=True)
class TimeoutRow:
    """One timeout: who enforces it, and whether it will end a hang in this job."""

    name: str
    value: str
    read_by: str
    set_by: str
    effective: bool


@dataclass(frozen=True, slots=True)
class CheckUp:
    """The doctor's whole result: findings, worst first, and the table of timeouts."""

    findings: tuple[Finding, ...]
    timeouts: tuple[TimeoutRow, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Nothing worse than a note."""
        return all(finding.level == NOTE for finding in self.findings)


def sort(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings without duplicates: errors first, within a level in the order of the checks."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda f: (ERROR, WARNING, NOTE).index(f.level)))
