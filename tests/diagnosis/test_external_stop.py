"""Unobserved ends: of all ranks at once, or of one that the others outlived."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import ExceptionFacts, ExitFacts, Flag, Frame, Phase

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


def test_rank_ended_when_connections_closed_in_a_thread_is_named() -> None:
    """The main threads continue in a group without rank 1 until all are killed."""
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


def test_rank_ended_when_the_job_stopped_moving_is_named() -> None:
    job = Job(4)
    job.steps(6)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    _heard_until(job, 1, 0.1)
    for rank in (0, 2, 3):
        _heard_until(job, rank, 3.5)
    assert judged(job.trace()) == ("rank_crashed", (1,), "likely")


@pytest.mark.parametrize("broke", [False, True], ids=["standing", "closing"])
def test_job_killed_rank_by_rank_after_a_hang(broke: bool) -> None:
    """Rank 2 sleeps; another rank is killed first, and its connections close."""
    job = Job(4)
    job.steps(6)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    lost = _lost_on_a_thread(job, 20.1)
    for rank in range(4):
        exception = lost if broke and rank == 3 else None
        _heard_until(job, rank, 20.0 if rank == 1 else 24.0, exception=exception)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_ranks_killed_after_a_hang_have_not_crashed() -> None:
    job = Job(4)
    job.steps(6)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    for rank in range(4):
        _heard_until(job, rank, 24.0)
    assert {report.state for report in diagnose(job.trace()).ranks} == {"ended"}


def test_moving_job_killed_at_once_names_no_rank() -> None:
    job = Job(4)
    job.steps(6)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    for rank, heard_s in enumerate((1.0, 0.1, 0.9, 0.5)):
        _heard_until(job, rank, heard_s)
    assert judged(job.trace())[1] == ()


def test_collective_is_stuck_only_while_all_members_are_in_it() -> None:
    """Rank 1 has issued it as well, but was observed for only a part of the time."""
    for heard_s, confidence in ((3.0, "certain"), (1.3, "likely")):
        job = Job(4)
        job.steps(6)
        job.all(done=False)
        for rank in range(4):
            _heard_until(job, rank, heard_s if rank == 1 else 3.3)
        assert judged(job.trace()) == ("stuck_collective", (), confidence)


def test_ctrl_c_followed_by_kill_before_all_ranks_ended() -> None:
    """A launcher interrupts its ranks and kills them a second later: rank 0 had reported the
    interrupt, rank 1 had not."""
    job = Job(4)
    job.steps(6)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    end = START + int((job.now + 0.5) * SECOND)
    interrupt = ExceptionFacts("KeyboardInterrupt", "", (Frame("train", "train.py", 1),), end)
    for rank in range(4):
        killed = ExitFacts("signal", signal=9, at_ns=end + SECOND + rank)
        job.rank(rank, alive=False, exit=killed, exception=interrupt if rank == 0 else None)
    assert judged(job.trace())[1] == ()


@pytest.mark.parametrize("waiting", [(0, 2, 3), ()], ids=["in a collective", "beside"])
@pytest.mark.parametrize("apart_s", [0.00001, 0.5], ids=["at once", "one by one"])
def test_common_exit_status_from_within_a_collective(
    waiting: tuple[int, ...], apart_s: float
) -> None:
    """Their parent is gone, and something outside Python ends each of them."""
    job = Job(4)
    job.steps(6)
    for rank in waiting:
        job.op(rank, done=False)
    end = START + int((job.now + 0.5) * SECOND)
    for rank in range(4):
        left = ExitFacts("code", 1, at_ns=end + int(rank * apart_s * SECOND), text=WITHOUT_A_WORD)
        job.rank(rank, alive=False, exit=left)
    verdict, named, _ = judged(job.trace())
    assert (verdict == "inconclusive", named == ()) == (bool(waiting) and apart_s < 0.1,) * 2


def test_only_rank_in_the_rendezvous_is_killed() -> None:
    """No rank waited for rank 0: it waited for ranks that left nothing."""
    for waited_s, phase in ((0.5, "init_process_group"), (30.0, "init_process_group"), (0.5, "")):
        job = Job(3)
        job.lose(1, 2)
        end = START + int(waited_s * SECOND)
        phases = (Phase(phase, START),) if phase else ()
        killed = ExitFacts("signal", signal=9, at_ns=end)
        job.rank(0, alive=False, exit=killed, heartbeat_ns=end, phases=phases)
        named = judged(job.trace(waited_s))[1]
        assert named == (() if phase else (0,))


@pytest.mark.parametrize("late_s", [0.0, 0.3])
def test_rank_that_others_wait_for_may_itself_have_waited_a_little_less(late_s: float) -> None:
    """Rank 1 leaves out a send to rank 2, for which the others wait; all are killed."""
    job = Job(4)
    for _ in range(6):
        job.op(1, "send", peer=2)
        job.op(2, "recv", peer=1)
        job.all()
    began = job.now
    for rank in (0, 1, 3):
        job.op(rank, done=False, at=began)
    job.op(2, "recv", peer=1, done=False, flags=Flag.BLOCKING, at=began + late_s)
    for rank in range(4):
        killed = ExitFacts("signal", signal=9, at_ns=START + int((began + 2.1) * SECOND))
        job.rank(rank, alive=False, exit=killed)
    found = diagnose(job.trace())
    assert found.culprits == (1,)
    assert found.verdict.value == "p2p_unmatched"
