"""Ranks that wait for the answer to a remote call while others wait for them."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import Frame, ThreadStack
from tests.diagnosis.builder import START, Job

API = "/site-packages/torch/distributed/rpc/api.py"
PUSH = Frame("push_grad", "/home/me/server.py", 6)
CALL = (Frame("rpc_sync", API, 842), Frame("<module>", "/home/me/train.py", 17))
SHUTDOWN = (
    Frame("wait", "/usr/lib/python3.11/threading.py", 629),
    Frame("_all_gather", API, 257),
    Frame("shutdown", API, 340),
    Frame("<module>", "/home/me/train.py", 21),
)


def test_absent_rank_that_waits_for_an_answer_is_not_surely_at_fault() -> None:
    job = Job(4, live=True)
    job.steps(3)
    for rank in (1, 2, 3):
        job.op(rank, "barrier", size=(), done=False)
    job.rank(0, threads=(ThreadStack("MainThread", True, CALL, START),))
    found = diagnose(job.trace())
    assert (found.culprits, found.confidence.value) == ((0,), "ambiguous")
    assert "may itself wait there" in found.findings[0].unknowns[0]


def _shutting_down(*absent: int) -> Diagnosis:
    """Ranks wait in rpc.shutdown after some collectives; ``absent`` are in their own code."""
    job = Job(4, live=True)
    job.steps(3)
    for rank in range(4):
        main = (PUSH,) if rank in absent else SHUTDOWN
        job.rank(rank, threads=(ThreadStack("MainThread", True, main, START),), stack_moved=False)
    newest_ns = max(int(row["completed_ns"]) for row in job.rows)
    return diagnose(replace(job.trace(), observed_ns=newest_ns + 20 * 10**9))


def test_report_says_who_stands_elsewhere_than_the_rest_of_a_silent_job() -> None:
    found = _shutting_down(3)
    assert (found.verdict.value, found.culprits) == ("quiescent", ())
    assert "rank 3: at server.py:6 in push_grad" in found.findings[0].evidence
