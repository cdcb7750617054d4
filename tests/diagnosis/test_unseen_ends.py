"""Unobserved ends of ranks and operations, next to a rank that left nothing."""

from __future__ import annotations

from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import ExceptionFacts, ExitFacts, Flag, Frame

from .builder import SECOND, START, Job, judged


def silent_since(job: Job, rank: int, after_s: float) -> None:
    """Nothing tells how the rank ended, but until when its process has shown signs of life."""
    beat = START + int((job.now + after_s) * SECOND)
    job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)


def test_rank_that_ended_in_a_receive_is_no_suspect() -> None:
    """Stage 0 of a pipeline was killed: stage 1 reports a lost connection, stage 2 nothing."""
    job = Job(3)
    for _ in range(4):
        for sender in (0, 1):
            job.op(sender, "send", peer=sender + 1)
            job.op(sender + 1, "recv", peer=sender)
    for rank in (1, 2):
        job.op(rank, "recv", peer=rank - 1, done=False)
    at_ns = START + int((job.now + 0.2) * SECOND)
    frames = (Frame("recv", "/x/torch/distributed/distributed_c10d.py", 9),)
    error = ExceptionFacts("RuntimeError", "Connection reset by peer [::1]:12", frames, at_ns)
    job.rank(1, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=at_ns))
    silent_since(job, 2, 0.1)
    job.lose(0)
    assert judged(job.trace()) == (Verdict.RANK_LOST, (0,), Confidence.LIKELY)


def test_rank_silent_in_an_operation_that_others_completed_was_not_waiting() -> None:
    """Rank 1 holds the GIL: it cannot record completions, and its heartbeat stops while that of
    rank 0 continues."""
    job = Job(3)
    job.steps(6)
    for rank in (0, 1, 2):
        job.op(rank, done=rank != 1)
    job.op(0, done=False)
    silent_since(job, 0, 30.0)
    silent_since(job, 1, 0.1)
    job.lose(2)
    assert judged(job.trace()) == (Verdict.RANK_CRASHED, (1,), Confidence.LIKELY)


def test_rank_ended_with_all_others_may_lack_the_last_completion() -> None:
    job = Job(3)
    job.steps(6)
    for rank in (0, 1, 2):
        job.op(rank, done=rank != 1)
    job.op(0, done=False)
    for rank in (0, 1):
        silent_since(job, rank, 0.1)
    job.lose(2)
    assert judged(job.trace()) == (Verdict.INCONCLUSIVE, (), Confidence.AMBIGUOUS)


def test_rank_past_an_unobservable_operation_waits_in_a_later_one() -> None:
    """Functional collectives over Gloo: the completion of a reduce-scatter is unobservable, and so
    is who waits for it. Rank 3 leaves no record."""
    job = Job(4)
    tensor = [job.group(r, r + 1, desc="tensor") for r in (0, 2)]
    data = [job.group(r, r + 2, desc="data") for r in (0, 1)]

    def step(rank: int, *, last: bool) -> None:
        stuck = last and rank == 2
        job.op(rank, "all_gather", group=tensor[rank // 2], line=10, done=not stuck)
        if not stuck:
            hidden = {"done": False, "flags": Flag.UNOBSERVED | Flag.ASYNC}
            job.op(rank, "reduce_scatter", group=tensor[rank // 2], line=11, **hidden)
            job.op(rank, group=data[rank % 2], line=12, done=not last)

    for _ in range(5):
        for rank in range(4):
            step(rank, last=False)
    for rank in range(3):
        step(rank, last=True)
    job.lose(3)
    assert judged(job.trace()) == (Verdict.RANK_LOST, (3,), Confidence.LIKELY)
