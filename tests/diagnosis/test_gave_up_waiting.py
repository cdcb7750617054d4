"""Ranks that time out, are interrupted or leave once a job hangs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame, Phase
from tests.diagnosis.builder import SECOND, START, Job, judged
from tests.diagnosis.ended_jobs import disconnect, hung, kill


def _interrupted(job: Job, rank: int, after_s: float) -> None:
    """SIGINT reaches a rank in its program; its interpreter takes a while to end."""
    at_ns = START + int((job.now + after_s) * SECOND)
    error = ExceptionFacts(
        "KeyboardInterrupt", "", (Frame("load", "/home/me/train.py", 23),), at_ns
    )
    exit_ = ExitFacts("exception", 1, signal=2, at_ns=at_ns)
    phases = (Phase("interpreter exit", at_ns),)
    job.rank(rank, alive=False, exception=error, exit=exit_, phases=phases)


def test_hung_rank_is_interrupted_and_the_others_lose_its_connection() -> None:
    job = hung()
    _interrupted(job, 2, 12.0)
    for rank in (1, 3):
        disconnect(job, rank, 14.0)
    kill(job, 0, 16.0)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert "interpreter exit" not in found.findings[0].why, "until then it was in its program"
    assert "load" in found.findings[0].why


def _left(job: Job, rank: int, after_s: float) -> None:
    at_ns = START + int((job.now + after_s) * SECOND)
    job.rank(rank, alive=False, exit=ExitFacts("clean", 0, at_ns=at_ns), heartbeat_ns=at_ns)


def _stay(job: Job, rank: int, after_s: float) -> None:
    job.rank(rank, heartbeat_ns=START + int((job.now + after_s + 60.0) * SECOND))


@pytest.mark.parametrize(
    ("end_of_others", "verdict"),
    [
        (_left, "missing_rank"),
        (partial(kill, signal=15), "missing_rank"),
        (disconnect, "rank_exited"),
        (_stay, "rank_exited"),
    ],
)
def test_rank_that_catches_ctrl_c_has_not_left_early(
    end_of_others: Callable[[Job, int, float], None], verdict: str
) -> None:
    """A program that prints "interrupted" and exits cleanly; the others notice once they lose a
    peer."""
    job = hung()
    _left(job, 2, 20.0)
    for rank in (0, 1, 3):
        end_of_others(job, rank, 20.5)
    assert judged(job.trace())[:2] == (verdict, (2,))


def test_rank_that_leaves_a_moving_job_left_early() -> None:
    job = hung()
    _left(job, 2, 0.5)
    kill(job, 0, 1.0, signal=15)
    for rank in (1, 3):
        disconnect(job, rank, 1.0)
    assert judged(job.trace())[:2] == ("rank_exited", (2,))


def _gave_up(job: Job, rank: int, after_s: float) -> None:
    """The end of a rank whose own timeout has expired."""
    at_ns = START + int((job.now + after_s) * SECOND)
    frames = (Frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 9),)
    error = ExceptionFacts("RuntimeError", "Application timeout caused pair closure", frames, at_ns)
    job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=at_ns))


def test_waiting_rank_silent_after_another_timed_out_has_not_crashed() -> None:
    """A barrier's timeout was caught and the next operation issued: the job has just moved."""
    job = hung()
    _gave_up(job, 0, 0.9)
    for rank in (1, 2, 3):
        beat = START + int((job.now + 0.8 + rank / 20) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_ranks_silent_around_anothers_timeout_have_not_crashed() -> None:
    """Heartbeats come once a second: both were killed alike, one just after its heartbeat."""
    job = Job(3)
    job.steps(10)
    job.op(0, done=False)
    _gave_up(job, 0, 40.0)
    for rank, heard in ((1, 39.9), (2, 40.1)):
        beat = START + int((job.now + heard) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat, host="node0")
    job.rank(0, host="node0")
    assert all(f.verdict.value != "rank_crashed" for f in diagnose(job.trace()).findings)


def test_rank_silent_long_before_another_timed_out_has_crashed() -> None:
    job = hung(culprit=9)
    for rank in (0, 2, 3):
        _gave_up(job, rank, 40.0)
    beat = START + int((job.now + 0.3) * SECOND)
    job.rank(1, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    assert judged(job.trace())[:2] == ("rank_crashed", (1,))


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("new_group", ("missing_rank", (1,))),
        ("init_process_group", ("missing_rank", (1,))),
        ("store.get", ("missing_rank", (1,))),
        ("checkpoint", ("rank_crashed", (0, 2, 3))),  # of its own: nobody has to come to it
    ],
)
def test_rank_that_aborts_during_a_rendezvous_has_timed_out(
    phase: str, expected: tuple[str, tuple[int, ...]]
) -> None:
    job = Job(4)
    job.steps(10)
    for rank in (0, 2, 3):
        at_ns = START + 200 * SECOND + rank
        aborted = ExitFacts("signal", signal=6, at_ns=at_ns)
        job.rank(rank, phases=(Phase(phase, START + SECOND),), alive=False, exit=aborted)
    stopped = ExitFacts("signal", signal=15, at_ns=START + 201 * SECOND, by_launcher=True)
    job.rank(1, alive=False, exit=stopped)
    assert judged(job.trace(after_s=201))[:2] == expected
