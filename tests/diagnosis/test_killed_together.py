"""Ends that nobody saw: of all ranks at once, or of one that the others outlived."""

from __future__ import annotations

import pytest

from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame

from .builder import SECOND, START, Job, judged


def _heard_until(job: Job, rank: int, after_s: float, **more: object) -> None:
    beat = START + int((job.now + after_s) * SECOND)
    job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat, **more)


def _lost_on_a_thread(job: Job, after_s: float) -> ExceptionFacts:
    frames = (Frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 9),)
    at_ns = START + int((job.now + after_s) * SECOND)
    return ExceptionFacts(
        "RuntimeError", "Connection reset by peer [::1]:12", frames, at_ns, "loader", False
    )


def test_the_one_that_had_ended_when_connections_closed_on_a_thread() -> None:
    """The main threads go on in a group without rank 1 until all are killed."""
    job = Job(4)
    without = job.group(0, 2, 3)
    job.steps(6)
    job.all(done=False)
    lost = _lost_on_a_thread(job, 0.2)
    _heard_until(job, 1, 0.1)
    for _ in range(4):
        for rank in (0, 2, 3):
            job.op(rank, group=without)
    for rank in (0, 2, 3):
        _heard_until(job, rank, 3.0, exception=lost)
    assert judged(job.trace()) == ("rank_crashed", (1,), "likely")


def test_the_one_that_had_ended_when_the_job_stopped_moving() -> None:
    job = Job(4)
    job.steps(6)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    _heard_until(job, 1, 0.1)
    for rank in (0, 2, 3):
        _heard_until(job, rank, 3.5)
    assert judged(job.trace()) == ("rank_crashed", (1,), "likely")


@pytest.mark.parametrize("broke", [False, True], ids=["standing", "closing"])
def test_a_job_that_hung_and_is_ended_rank_by_rank(broke: bool) -> None:
    """Rank 2 sleeps; the first to be killed is another one, and its connections close."""
    job = Job(4)
    job.steps(6)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    lost = _lost_on_a_thread(job, 20.1)
    for rank in range(4):
        exception = lost if broke and rank == 3 else None
        _heard_until(job, rank, 20.0 if rank == 1 else 24.0, exception=exception)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_nobody_is_named_where_a_moving_job_was_killed_at_once() -> None:
    job = Job(4)
    job.steps(6)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    for rank, heard_s in enumerate((1.0, 0.1, 0.9, 0.5)):
        _heard_until(job, rank, heard_s)
    assert judged(job.trace())[1] == ()


def test_a_collective_is_stuck_only_while_all_of_its_members_stand_in_it() -> None:
    """Rank 1 has issued it as well, and was heard of for a part of the time only."""
    for heard_s, confidence in ((3.0, "certain"), (1.3, "likely")):
        job = Job(4)
        job.steps(6)
        job.all(done=False)
        for rank in range(4):
            _heard_until(job, rank, heard_s if rank == 1 else 3.3)
        assert judged(job.trace()) == ("stuck_collective", (), confidence)
