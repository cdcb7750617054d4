"""Jobs in which some ranks fail."""

from __future__ import annotations

from hangscope.trace.model import (
    ExceptionFacts,
    Frame,
)
from tests.diagnosis.builder import SECOND, START, Job

TORCH = Frame("all_reduce", "/site-packages/torch/distributed/distributed_c10d.py", 1)

END = START + SECOND
"""Less than a second after the last operation: nobody had been waiting for long."""


def job_that_waits(world: int = 4, *, waiting: tuple[int, ...] = (0, 2, 3), steps: int = 30) -> Job:
    job = Job(world)
    job.steps(steps)
    for rank in waiting:
        job.op(rank, done=False)
    return job


def error_of(kind: str, text: str, *stack: Frame, at_ns: int = END) -> ExceptionFacts:
    return ExceptionFacts(kind, text, stack, at_ns=at_ns)
