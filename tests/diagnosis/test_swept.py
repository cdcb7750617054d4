"""A job that hangs is killed in the end, rank by rank: none of those ends explains the hang."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame, Source, Trace
from tests.diagnosis.builder import SECOND, START, Job


def _hung(world: int = 4, culprit: int = 2) -> Job:
    """All but the culprit wait in an all-reduce."""
    job = Job(world)
    job.steps(10)
    for rank in range(world):
        if rank != culprit:
            job.op(rank, done=False)
    return job


def _killed(job: Job, rank: int, after_s: float) -> None:
    at_ns = START + int((job.now + after_s) * SECOND)
    job.rank(rank, alive=False, exit=ExitFacts("signal", signal=9, at_ns=at_ns))


def _disconnected(job: Job, rank: int, after_s: float) -> None:
    at_ns = START + int((job.now + after_s) * SECOND)
    frames = (Frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 9),)
    error = ExceptionFacts("RuntimeError", "Connection closed by peer [::1]:12", frames, at_ns)
    job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=at_ns))


def _told(trace: Trace) -> tuple[str, tuple[int, ...], str]:
    found = diagnose(trace)
    return found.verdict.value, found.culprits, found.confidence.value


def test_ranks_killed_one_after_another_after_the_hang_are_victims() -> None:
    job = _hung()
    for rank in (0, 2):
        _killed(job, rank, 12.0)
    for rank in (1, 3):
        _disconnected(job, rank, 12.1)
    assert _told(job.trace()) == ("missing_rank", (2,), "certain")


def test_ends_that_nobody_saw_count_from_the_last_sign_of_life() -> None:
    job = _hung()
    for rank in (0, 2):
        beat = START + int((job.now + 11.0) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    for rank in (1, 3):
        _disconnected(job, rank, 12.1)
    assert _told(job.trace())[:2] == ("missing_rank", (2,))


def test_a_rank_killed_in_the_middle_of_a_step_has_crashed() -> None:
    job = _hung()
    _killed(job, 2, 0.2)
    for rank in (0, 1, 3):
        _disconnected(job, rank, 0.3)
    assert _told(job.trace()) == ("rank_crashed", (2,), "certain")


def test_one_killed_alone_in_a_computation_the_others_waited_for_has_crashed() -> None:
    job = _hung()
    _killed(job, 2, 30.0)
    for rank in (0, 1, 3):
        _disconnected(job, rank, 30.1)
    assert _told(job.trace()) == ("rank_crashed", (2,), "certain")


def test_a_waiting_rank_killed_alone_after_the_hang_is_a_victim() -> None:
    job = _hung()
    _killed(job, 0, 30.0)
    for rank in (1, 3):
        _disconnected(job, rank, 30.1)
    job.rank(2, alive=True)
    assert _told(job.trace())[:2] == ("missing_rank", (2,))


def _without_ring(job: Job, rank: int) -> Trace:
    """The rank's ring is gone; the monitor's journal tells how it ended."""
    job.rows = [row for row in job.rows if row["rank"] != rank]
    sources = [Source(f"rank_{r}.ring", "hangscope-ring", "1", r) for r in range(4) if r != rank]
    return replace(job.trace(), sources=(*sources, Source("0.journal", "hangscope-journal")))


def test_an_exit_status_alone_is_not_the_first_failure_where_others_gave_up_waiting() -> None:
    job = _hung()
    at_ns = START + int((job.now + 5.0) * SECOND)
    for rank in (1, 3):
        error = ExceptionFacts("RuntimeError", "Timed out waiting 5000ms for recv", (), at_ns)
        job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=at_ns))
    job.rank(0, alive=False, exit=ExitFacts("code", 1, at_ns=at_ns))
    job.rank(2, alive=True)
    assert _told(_without_ring(job, 0)) == ("missing_rank", (2,), "likely")


def test_who_left_only_a_kill_after_the_hang_is_lost_not_crashed() -> None:
    job = _hung()
    for rank in range(4):
        if rank != 3:
            _killed(job, rank, 12.0)
    _disconnected(job, 3, 12.1)
    assert _told(_without_ring(job, 2)) == ("rank_lost", (2,), "likely")


def test_ranks_in_init_do_not_accuse_one_whose_ring_is_gone_with_certainty() -> None:
    from hangscope.trace.model import Phase

    job = Job(4)
    since = START
    for rank in range(4):
        phase = Phase("init_process_group", since)
        job.rank(rank, phases=(phase,), initialized=False, alive=True)
    job.rank(3, phases=(), initialized=None, alive=None)
    trace = _without_ring(job, 3)
    assert _told(trace)[1:] in (((3,), "likely"), ((), "likely"))


def test_an_unseen_end_does_not_come_before_a_mismatch_the_rank_took_part_in() -> None:
    job = Job(4)
    job.steps(10)
    for rank in range(4):
        job.op(rank, size=(9,) if rank == 1 else (16,), done=False)
    for rank in (1, 2):
        beat = START + int((job.now - 0.02) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    for rank in (0, 3):
        _disconnected(job, rank, 0.6)
    assert _told(job.trace())[:2] == ("shape_mismatch", (1,))


def test_with_a_member_unheard_of_two_absent_ranks_are_no_majority() -> None:
    job = Job(4, live=True)
    job.steps(10)
    job.op(2, done=False)
    for rank in (1, 3):
        job.rank(rank, finalized=False)
    job.lose(0)
    found = diagnose(job.trace())
    assert 2 not in found.culprits
