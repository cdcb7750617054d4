"""Receives that a host has posted ahead but not waited for yet: they hold nobody up."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.model import Flag, Frame, Stack, ThreadStack
from tests.diagnosis.builder import START, Job, judged, stack_of

IN_FORWARD = (
    Frame("forward", "/home/me/model.py", 16),
    Frame("forward_one_chunk", "/venv/site-packages/torch/distributed/pipelining/stage.py", 892),
)
IN_A_WAIT = (
    Frame("_wait_batch_p2p", "/venv/site-packages/torch/distributed/pipelining/schedules.py", 50),
    Frame("train", "/home/me/train.py", 5),
)


def _a_stage_in(stack: Stack) -> Diagnosis:
    """Rank 1 has posted its receive from rank 2, which sent; rank 2 waits for what 1 is to send."""
    job = Job(3, live=True)
    job.steps(3)
    job.op(2, "send", peer=1, flags=Flag.ASYNC, done=False)
    job.op(1, "recv", peer=2, flags=Flag.ASYNC, done=False)
    for rank in (0, 2):
        job.op(rank, "recv", peer=1, flags=Flag.ASYNC | Flag.WAITED, done=False)
    job.rank(1, threads=(ThreadStack("MainThread", True, stack, START),))
    return diagnose(job.trace())


def test_stage_in_forward_does_not_wait_for_its_posted_receives() -> None:
    found = _a_stage_in(IN_FORWARD)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert "model.py:16 in forward" in found.findings[0].fix


def test_rank_that_may_wait_in_an_unrecorded_way_is_not_accused() -> None:
    assert _a_stage_in(IN_A_WAIT).culprits == ()


_LAST = 7


@pytest.mark.parametrize("state", ["running", "stopped"])
@pytest.mark.parametrize("from_step", [_LAST, 0, None])
def test_rank_that_left_out_a_send_is_as_suspect_as_the_one_that_may_poll_for_it(
    from_step: int | None, state: str
) -> None:
    """Rank 0 is in a loop with a receive posted; rank 1, which never sent, is at the barrier.

    If it has never sent there, or has sent this time as well, or rank 0 is stopped, only rank 0 is
    known to be late."""
    job = Job(3, live=True)
    for step in range(_LAST + 1):
        done = step < _LAST
        job.op(0, "recv", peer=1, done=done or from_step == 0, flags=Flag.ASYNC)
        if from_step is None or step < from_step:
            job.op(1, "send", peer=0, done=done)
        for rank in (0, 1, 2) if done else (1, 2):
            job.op(rank, "barrier", done=done, flags=Flag.BLOCKING)
    job.rank(0, process_state=state, threads=stack_of("poll"))
    found = judged(job.trace())
    if from_step == _LAST and state == "running":
        assert found == (Verdict.P2P_UNMATCHED, (0, 1), Confidence.AMBIGUOUS)
    else:
        assert found[1:] == ((0,), Confidence.CERTAIN)
