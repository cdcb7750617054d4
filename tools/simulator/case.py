"""One virtual hang: a run with a fault, and the truth that goes with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tools.simulator.execute import Run
from tools.simulator.program import Job


@dataclass(frozen=True)
class Truth:
    """What a right answer looks like.

    ``ambiguous_with``: where the dumps look the same with the roles swapped (two members, or two
    equal sides), the answer may be ambiguous and hold the truth among these ranks.
    """

    fault: str
    verdicts: frozenset[str]
    culprits: frozenset[int]
    ambiguous_with: frozenset[int] = frozenset()


@dataclass
class Host:
    """What a recorder beside the rank would have seen of the process."""

    state: str = "sleeping"
    alive: bool = True
    exit: str = ""
    exit_at: float = 0.0
    exception: str = ""
    function: str = ""
    finalized: bool = False
    by_launcher: bool = False
    signal: int | None = None


@dataclass
class Case:
    """A run with a fault, before it is written in a dialect."""

    number: int
    run: Run
    truth: Truth
    hosts: list[Host]
    lost: frozenset[int] = frozenset()
    at: list[float] = field(default_factory=list)
    """When each rank's dump is taken."""
    keep: int = 0
    """Entries the buffer holds; 0: all."""


class UnsuitableError(Exception):
    """The fault did not take in this job; draw another."""


Made = tuple[Run, Truth, list[Host], frozenset[int]]

Fault = Callable[[Job, random.Random], Made]


def healthy_hosts(job: Job) -> list[Host]:
    """Of a job in whose processes nothing is wrong."""
    return [Host(function="step") for _ in range(job.world)]
