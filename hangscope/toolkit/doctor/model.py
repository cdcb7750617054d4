"""What the checks look at, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hangscope.toolkit.environments.interfaces import Interface
from hangscope.toolkit.environments.variables import Version

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. ``check`` is a short stable name, ``playbook`` one of D1 to D23."""

    level: str
    check: str
    what: str
    fix: str
    playbook: str = ""
    where: str = ""
    """``file:line`` where the cause is in a file."""
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
    """What its environment says that tells the job from others."""
    visible: str | None = None
    """Its CUDA_VISIBLE_DEVICES; ``None`` where it is not set."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything the checks of one process look at, gathered once (see `surroundings.gather`)."""

    env: Mapping[str, str]
    torch_version: str = ""
    version: Version = (99, 0)
    devices: tuple[Device, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    command: tuple[str, ...] = ()
    """The launch command the user is about to run; empty where none was given."""
    shm_bytes: int | None = None
    """Free space in /dev/shm; ``None`` where there is none."""
    files_limit: int | None = None
    home: str = ""
    cwd: str = "."


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
    """All that the doctor says: findings, worst first, and the timeouts as one table."""

    findings: tuple[Finding, ...]
    timeouts: tuple[TimeoutRow, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Nothing worse than a note."""
        return all(finding.level == NOTE for finding in self.findings)


def sort(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors first, the order of the checks within a level, nothing said twice."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda f: (ERROR, WARNING, NOTE).index(f.level)))
