"""Ranks that wait for the answer to a remote call while others wait for them."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import Frame, ThreadStack
from tests.diagnosis.builder import START, Job

API = "/site-packages/torch/distributed/rpc/api.py"
RUN = Frame("_run_function", "/site-packages/torch/distributed/rpc/internal.py", 209)
PUSH = Frame("push_grad", "/home/me/server.py", 6)
CALL = (Frame("rpc_sync", API, 842), Frame("<module>", "/home/me/train.py", 17))


def _judged(*handlers: int, nested: bool = False) -> Diagnosis:
    """Rank 0 calls another rank's function, and the others wait for it in a barrier."""
    job = Job(4, live=True)
    job.steps(3)
    for rank in (1, 2, 3):
        job.op(rank, "barrier", size=(), done=False)
    job.rank(0, threads=(ThreadStack("MainThread", True, CALL, START),))
    inner = (Frame("rpc_sync", API, 842), PUSH) if nested else (PUSH,)
    for rank in handlers:
        job.rank(rank, threads=(ThreadStack("", False, (*inner, RUN), START),))
    return diagnose(job.trace())


def test_the_rank_whose_handler_is_stuck_is_named_not_the_one_that_waits_for_it() -> None:
    found = _judged(2)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "likely"
    first = found.findings[0]
    assert "its handler is at server.py:6 in push_grad" in first.summary
    assert 0 in first.victims
    assert first.sides[-1].stack == (PUSH,)


def test_without_one_handler_alone_the_absent_rank_stays_accused() -> None:
    assert _judged().culprits == (0,)
    assert _judged(1, 2).culprits == (0,)
    assert _judged(2, nested=True).culprits == (0,)
