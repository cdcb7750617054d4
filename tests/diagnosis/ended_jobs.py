"""Jobs that hang until their ranks are ended."""

from __future__ import annotations

from dataclasses import replace

from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame, Source, Trace
from tests.diagnosis.builder import SECOND, START, Job


def hung(world: int = 4, culprit: int = 2) -> Job:
    """All but the culprit wait in an all-reduce."""
    job = Job(world)
    job.steps(10)
    for rank in range(world):
        if rank != culprit:
            job.op(rank, done=False)
    return job


def kill(job: Job, rank: int, after_s: float, signal: int = 9) -> None:
    at_ns = START + int((job.now + after_s) * SECOND)
    job.rank(rank, alive=False, exit=ExitFacts("signal", signal=signal, at_ns=at_ns))


def disconnect(job: Job, rank: int, after_s: float) -> None:
    at_ns = START + int((job.now + after_s) * SECOND)
    frames = (Frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 9),)
    error = ExceptionFacts("RuntimeError", "Connection closed by peer [::1]:12", frames, at_ns)
    job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=at_ns))


def without_ring(job: Job, rank: int) -> Trace:
    """The rank's ring is gone; the monitor's journal tells how it ended."""
    job.rows = [row for row in job.rows if row["rank"] != rank]
    sources = [Source(f"rank_{r}.ring", "hangscope-ring", "1", r) for r in range(4) if r != rank]
    return replace(job.trace(), sources=(*sources, Source("0.journal", "hangscope-journal")))


def finished(job: Job, rank: int, at_s: float) -> None:
    at_ns = START + int(at_s * SECOND)
    job.rank(rank, alive=False, finalized=True, exit=ExitFacts("clean", 0, at_ns=at_ns))
