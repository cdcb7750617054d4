"""Groups that ranks reached in different orders before, without harm."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Frame, Stack, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job, judged

_MINE = Frame("train", "/job/train.py", 20)
_SENDS = (Frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 9), _MINE)
_SAVES = (Frame("gather", "/x/torch/distributed/distributed_c10d.py", 9),)
_FUTURE = (Frame("result", "/usr/lib/python3.11/concurrent/futures/_base.py", 9), _MINE)
_IDLE = (Frame("_worker", "/usr/lib/python3.11/concurrent/futures/thread.py", 9),)
_WRITES = (Frame("write", "/x/torch/distributed/checkpoint/filesystem.py", 9),)


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
        assert found == (Verdict.INCONCLUSIVE, (), Confidence.AMBIGUOUS)
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


def _seen(job: Job, rank: int, main: Stack, other: Stack, at_s: float = 50) -> None:
    """The rank's main thread, which has the process's id, and another one."""
    at_ns = START + int(at_s * SECOND)
    main_thread = ThreadStack("MainThread", True, main, at_ns, native_id=100 + rank)
    pool = ThreadStack("saver_0", False, other, at_ns, native_id=200 + rank)
    job.rank(rank, pid=100 + rank, threads=(main_thread, pool))


def _skipped(idle: Stack = _IDLE, at_s: float = 50) -> Job:
    """Rank 3 is in the step, as its thread has nothing to save; elsewhere a thread saves, and the
    main one waits for that."""
    job = _saving(by_thread=True)
    for row in job.rows[-4:]:
        rank = row["rank"]
        row["group"] = 0 if rank == 3 else 1
        row["thread"] = 100 + rank if rank == 3 else 200 + rank
        if rank == 3:
            _seen(job, rank, _SENDS, idle, at_s)
        else:
            _seen(job, rank, _FUTURE, _SAVES, at_s)
    return job


@pytest.mark.parametrize(("idle", "at_s"), [(_WRITES, 50), (_IDLE, 0)])
def test_thread_that_may_still_come_accuses_no_rank(idle: Stack, at_s: float) -> None:
    """It is at work, or it was seen before the others began to wait."""
    found = diagnose(_skipped(idle, at_s).trace())
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())
    assert "py-spy dump" in found.findings[0].fix
