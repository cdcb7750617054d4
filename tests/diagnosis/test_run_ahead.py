"""Hosts run ahead of their devices until they need a result."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Frame, ThreadStack, Trace
from tests.diagnosis.builder import START, Job, judged

FINISHED, ISSUED = 18, 24


def gathers(
    *stayed: int, backend: str = "nccl", needed: bool = False, waits: bool = False
) -> Trace:
    """Four ranks gather parameters; nobody finishes one gather, after which some issue no more.

    ``needed``: those have always taken their time after every other gather, as if they needed its
    result; ``waits``: they are seen to wait.
    """
    job = Job(4)
    for number in range(ISSUED):
        for rank in job.groups[0].ranks:
            if number <= FINISHED or rank not in stayed:
                late = number % 2 and needed and rank in stayed
                at = number // 2 + (0.9 if late else 0.001 * (number % 2))
                job.op(
                    rank, "all_gather", out=(64,), done=number < FINISHED, at=at, line=number % 2
                )
    if waits:
        stack = (Frame("synchronize", "/opt/torch/cuda/__init__.py", 5),)
        for rank in stayed:
            job.rank(rank, threads=(ThreadStack("MainThread", True, stack, START),))
    signatures = tuple(replace(s, backend=backend) for s in job.signatures)
    return job.trace(after_s=600.0, signatures=signatures)


def test_host_that_did_not_run_ahead_is_the_suspect() -> None:
    found = diagnose(gathers(2))
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, (2,))
    assert found.confidence is Confidence.LIKELY
    assert "code is not the cause" not in found.findings[0].fix
    assert found.headline.startswith("Rank 2 probably failed inside all_gather #19")


def test_nobody_is_named_where_that_tells_nothing() -> None:
    """Most stayed; the rank has always needed that result; the backend blocks its callers; the rank
    is seen to wait like all others."""
    traces = [gathers(0, 2, 3), gathers(), gathers(2, needed=True)]
    for trace in [*traces, gathers(2, backend="gloo"), gathers(2, waits=True)]:
        assert judged(trace)[:2] == (Verdict.STUCK_COLLECTIVE, ())
