"""One virtual hang: a run with a fault, and the truth that goes with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tools.simulator.execute import Run
from tools.simulator.program import Job


@dataclass(frozen=True)
class Truth:
    """The right answer.

    ``ambiguous_with``: if the dumps would look the same with the roles swapped (two members, or two
    equal sides), an ambiguous answer with the truth among these ranks is right.
    """

    fault: str
    verdicts: frozenset[str]
    culprits: frozenset[int]
    ambiguous_with: frozenset[int] = frozenset()


@dataclass
class Host:
    """What an observer on the rank's host would have seen of the process."""

    state: str = "sleeping"
    alive: bool = True
    exit: str = ""
    exit_at: float = 0.0
    beat_at: float = 0.0
    """When its recorder last ran; 0: when it was looked at."""
    exception: str = ""
    function: str = ""
    finalized: bool = False
    by_launcher: bool = False
    signal: int | None = None


@dataclass
class Case:
    """A run with a fault, independent of the dialect it is written in."""

    number: int
    run: Run
    truth: Truth
    hosts: list[Host]
    lost: frozenset[int] = frozenset()
    at: list[float] = field(default_factory=list)
    """When each rank's dump is taken."""
    keep: int = 0
    """Entries that fit into the buffer; 0 means all."""


class UnsuitableError(Exception):
    """The fault had no effect in this job; draw another."""


Made = tuple[Run, Truth, list[Host], frozenset[int]]

Fault = Callable[[Job, random.Random], Made]


def healthy_hosts(job: Job) -> list[Host]:
    """The hosts of a job whose processes are all healthy."""
    return [Host(function="step") for _ in range(job.world)]
