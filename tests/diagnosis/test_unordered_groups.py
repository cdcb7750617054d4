"""Groups that ranks reached in different orders before, without harm."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.model import Confidence, Verdict
from tests.diagnosis.builder import Job, judged


def _saving(*, by_thread: bool) -> Job:
    """A checkpoint of a group of its own beside each step. ``by_thread``: where it falls in the
    step of rank 0 differs from step to step, elsewhere it does not. At last rank 3 has come to the
    checkpoint without the step that the others are in."""
    job = Job(4)
    saves = job.group(0, 1, 2, 3, desc="SAVES")
    for step in range(4):
        for rank in range(4):
            early = by_thread and rank == 0 and step in (1, 2)
            for group in (saves, 0) if early else (0, saves):
                job.op(rank, group=group)
    for rank in range(4):
        job.op(rank, group=saves if rank == 3 else 0, done=False)
    return job


@pytest.mark.parametrize("by_thread", [True, False])
def test_order_that_was_free_before_accuses_no_rank(by_thread: bool) -> None:
    found = judged(_saving(by_thread=by_thread).trace())
    if by_thread:
        assert found == (Verdict.INCONCLUSIVE, (), Confidence.LIKELY)
    else:
        assert found == (Verdict.DEADLOCK_CYCLE, (3,), Confidence.CERTAIN)


def test_rank_that_skipped_a_call_stays_behind_and_is_accused() -> None:
    """Rank 0 saved once less and has met the others one number later ever since."""
    job = Job(4)
    saves = job.group(0, 1, 2, 3, desc="SAVES")
    for step in range(6):
        for rank in range(4):
            job.op(rank)
            if rank or step != 3:
                job.op(rank, group=saves, done=not rank or step < 5)
    job.op(0, done=False)
    verdict, culprits, _ = judged(job.trace())
    assert (verdict, culprits) == (Verdict.DEADLOCK_CYCLE, (0,))
