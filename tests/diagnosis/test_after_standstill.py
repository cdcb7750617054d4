"""A job that hangs is killed in the end, rank by rank: none of those ends explains the hang."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import ExceptionFacts, ExitFacts, Flag, Frame, Phase
from tests.diagnosis.builder import SECOND, START, Job, judged
from tests.diagnosis.ended_jobs import disconnect, finished, kill, without_ring


def _hung(world: int = 4, culprit: int = 2) -> Job:
    """All but the culprit wait in an all-reduce."""
    job = Job(world)
    job.steps(10)
    for rank in range(world):
        if rank != culprit:
            job.op(rank, done=False)
    return job


def test_ranks_killed_one_after_another_after_the_hang_are_victims() -> None:
    job = _hung()
    for rank in (0, 2):
        kill(job, rank, 12.0)
    for rank in (1, 3):
        disconnect(job, rank, 12.1)
    assert judged(job.trace()) == ("missing_rank", (2,), "certain")


def test_ends_that_nobody_saw_count_from_the_last_sign_of_life() -> None:
    job = _hung()
    for rank in (0, 2):
        beat = START + int((job.now + 11.0) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    for rank in (1, 3):
        disconnect(job, rank, 12.1)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_a_rank_killed_in_the_middle_of_a_step_has_crashed() -> None:
    job = _hung()
    kill(job, 2, 0.2)
    for rank in (0, 1, 3):
        disconnect(job, rank, 0.3)
    assert judged(job.trace()) == ("rank_crashed", (2,), "certain")


def test_one_killed_alone_in_a_computation_the_others_waited_for_has_crashed() -> None:
    job = _hung()
    kill(job, 2, 30.0)
    for rank in (0, 1, 3):
        disconnect(job, rank, 30.1)
    assert judged(job.trace()) == ("rank_crashed", (2,), "certain")


def test_one_that_was_stopped_computes_nothing_it_could_be_killed_in() -> None:
    job = _hung()
    kill(job, 2, 30.0)
    job.rank(2, process_state="stopped")
    for rank in (0, 1, 3):
        disconnect(job, rank, 30.1)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_the_first_of_a_circle_to_be_killed_stood_in_its_receive() -> None:
    job = Job(3)
    job.steps(10)
    for rank in range(3):
        job.op(rank, "recv", peer=(rank + 1) % 3, done=False, flags=Flag.BLOCKING)
    kill(job, 2, 12.0)
    for rank in (0, 1):
        disconnect(job, rank, 12.1)
    assert judged(job.trace())[:2] == ("deadlock_cycle", (0, 1, 2))


def _interrupted(job: Job, rank: int, after_s: float) -> None:
    """SIGINT reaches a rank in its program; its interpreter takes its time to end."""
    at_ns = START + int((job.now + after_s) * SECOND)
    error = ExceptionFacts(
        "KeyboardInterrupt", "", (Frame("load", "/home/me/train.py", 23),), at_ns
    )
    exit_ = ExitFacts("exception", 1, signal=2, at_ns=at_ns)
    phases = (Phase("interpreter exit", at_ns),)
    job.rank(rank, alive=False, exception=error, exit=exit_, phases=phases)


def test_who_hangs_is_interrupted_and_the_others_lose_their_connections_to_it() -> None:
    job = _hung()
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
def test_who_catches_ctrl_c_has_not_left_in_the_middle(
    end_of_others: Callable[[Job, int, float], None], verdict: str
) -> None:
    """A program that says "interrupted" and ends well; the others hear it once they lose a peer."""
    job = _hung()
    _left(job, 2, 20.0)
    for rank in (0, 1, 3):
        end_of_others(job, rank, 20.5)
    assert judged(job.trace())[:2] == (verdict, (2,))


def test_who_leaves_before_anything_stands_still_left_in_the_middle() -> None:
    job = _hung()
    _left(job, 2, 0.5)
    kill(job, 0, 1.0, signal=15)
    for rank in (1, 3):
        disconnect(job, rank, 1.0)
    assert judged(job.trace())[:2] == ("rank_exited", (2,))


def test_a_waiting_rank_killed_alone_after_the_hang_is_a_victim() -> None:
    job = _hung()
    kill(job, 0, 30.0)
    for rank in (1, 3):
        disconnect(job, rank, 30.1)
    job.rank(2, alive=True)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_an_exit_status_alone_is_not_the_first_failure_where_others_gave_up_waiting() -> None:
    job = _hung()
    at_ns = START + int((job.now + 5.0) * SECOND)
    for rank in (1, 3):
        error = ExceptionFacts("RuntimeError", "Timed out waiting 5000ms for recv", (), at_ns)
        job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=at_ns))
    job.rank(0, alive=False, exit=ExitFacts("code", 1, at_ns=at_ns))
    job.rank(2, alive=True)
    assert judged(without_ring(job, 0)) == ("missing_rank", (2,), "likely")


def test_an_exit_status_alone_does_not_come_before_one_who_had_left_in_the_middle() -> None:
    """Rank 2 ends with status 0 and work unfinished; what that breaks rank 0 says, and rank 1 has
    nothing left to say it with."""
    job = Job(4)
    job.steps(5)
    job.all(done=False)
    for rank, after_s, way in ((2, 0.01, "clean"), (1, 1.2, "code")):
        at_ns = START + int((job.now + after_s) * SECOND)
        exit_ = ExitFacts(way, int(way == "code"), at_ns=at_ns)
        job.rank(rank, alive=False, exit=exit_, host="a", finalized=False)
    for rank in (0, 3):
        disconnect(job, rank, 0.4)
    assert judged(without_ring(job, 1))[:2] == ("rank_exited", (2,))


def test_who_left_only_a_kill_after_the_hang_is_lost_not_crashed() -> None:
    job = _hung()
    for rank in range(4):
        if rank != 3:
            kill(job, rank, 12.0)
    disconnect(job, 3, 12.1)
    assert judged(without_ring(job, 2)) == ("rank_lost", (2,), "likely")


def test_ranks_in_init_do_not_accuse_one_whose_ring_is_gone_with_certainty() -> None:
    job = Job(4)
    since = START
    for rank in range(4):
        phase = Phase("init_process_group", since)
        job.rank(rank, phases=(phase,), initialized=False, alive=True)
    job.rank(3, phases=(), initialized=None, alive=None)
    trace = without_ring(job, 3)
    assert judged(trace)[1:] in (((3,), "likely"), ((), "likely"))


def test_an_unseen_end_does_not_come_before_a_mismatch_the_rank_took_part_in() -> None:
    job = Job(4)
    job.steps(10)
    for rank in range(4):
        job.op(rank, size=(9,) if rank == 1 else (16,), done=False)
    for rank in (1, 2):
        beat = START + int((job.now - 0.02) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    for rank in (0, 3):
        disconnect(job, rank, 0.6)
    assert judged(job.trace())[:2] == ("shape_mismatch", (1,))


def test_with_a_member_unheard_of_two_absent_ranks_are_no_majority() -> None:
    job = Job(4, live=True)
    job.steps(10)
    job.op(2, done=False)
    for rank in (1, 3):
        job.rank(rank, finalized=False)
    job.lose(0)
    found = diagnose(job.trace())
    assert 2 not in found.culprits


def test_a_job_that_stood_still_outside_of_collectives_until_it_was_killed_is_quiescent() -> None:
    job = Job(4, timeout_s=10.0)
    job.steps(10)
    for rank in range(4):
        kill(job, rank, 40.0)
    assert judged(job.trace())[:2] == ("quiescent", ())


def test_a_job_that_was_killed_between_two_steps_is_none() -> None:
    job = Job(4, timeout_s=10.0)
    job.steps(10)
    for rank in range(4):
        kill(job, rank, 3.0)
    assert judged(job.trace())[0] == "healthy"


def test_what_a_rank_began_to_wait_for_counts_as_its_last_sign_too() -> None:
    job = Job(3)
    since = START + SECOND
    for rank in (0, 2):
        job.rank(rank, phases=(Phase("store.get", since, "all/4"),), heartbeat_ns=START)
    for rank in range(3):
        at_ns = START + 21 * SECOND
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=9, at_ns=at_ns))
    assert judged(job.trace())[:2] == ("missing_rank", (1,))


def _circle(*, rank_0_is_there: bool) -> Job:
    """Rank 3 waits for rank 2 in their own group, and rank 2 in a barrier of all for rank 3."""
    job = Job(4)
    pair = job.group(2, 3)
    for _ in range(12):
        job.all()
        job.all(group=pair)
    job.op(3, group=pair, done=False)
    job.op(2, "barrier", done=False)
    if rank_0_is_there:
        for rank in (0, 1):
            job.op(rank, "barrier", done=False)
    return job


def test_who_waits_where_everybody_else_waits_has_not_left_the_pattern() -> None:
    verdict, culprits, confidence = judged(_circle(rank_0_is_there=True).trace())
    assert verdict == "deadlock_cycle"
    assert (culprits, confidence) in (((2, 3), "ambiguous"), ((3,), "likely"))


def test_of_a_circle_only_those_are_named_who_could_break_it() -> None:
    job = Job(5)
    leaders = job.group(0, 4, desc="leaders")
    node = job.group(0, 1, 2, 3, desc="node")
    for _ in range(3):
        job.all(group=leaders)
        job.all(group=node)
    job.op(0, group=leaders, done=False)
    for rank in (1, 2, 3):
        job.op(rank, group=node, done=False)
    job.op(4, done=False)
    verdict, culprits, confidence = judged(job.trace())
    assert (verdict, culprits, confidence) == ("deadlock_cycle", (0, 4), "ambiguous")


def test_ranks_that_leave_because_of_the_kill_do_not_move() -> None:
    job = _hung()
    for rank in (0, 2):
        kill(job, rank, 12.0)
    for rank in (1, 3):
        disconnect(job, rank, 12.1)
        leaving_ns = START + int((job.now + 12.1) * SECOND)
        job.rank(rank, phases=(Phase("interpreter exit", leaving_ns),))
    assert judged(job.trace()) == ("missing_rank", (2,), "certain")


def test_who_outlives_the_signal_that_ended_the_others_is_ended_with_them() -> None:
    """A stopped process takes no SIGTERM: the launcher kills it in the end, long after the rest."""
    job = _hung()
    for rank in (0, 1, 3):
        at_ns = START + int((job.now + 12.0) * SECOND)
        ended = ExitFacts("signal", signal=15, at_ns=at_ns, by_launcher=rank > 0)
        job.rank(rank, alive=False, exit=ended)
    kill(job, 2, 42.0)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_who_was_killed_before_the_launcher_ended_the_others_has_crashed() -> None:
    job = _hung()
    kill(job, 2, 12.0)
    for rank in (0, 1, 3):
        at_ns = START + int((job.now + 12.5) * SECOND)
        ended = ExitFacts("signal", signal=15, at_ns=at_ns, by_launcher=True)
        job.rank(rank, alive=False, exit=ended)
    assert judged(job.trace())[:2] == ("rank_crashed", (2,))


def _gave_up(job: Job, rank: int, after_s: float) -> None:
    """The end of a rank whose own timeout has expired."""
    at_ns = START + int((job.now + after_s) * SECOND)
    frames = (Frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 9),)
    error = ExceptionFacts("RuntimeError", "Application timeout caused pair closure", frames, at_ns)
    job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=at_ns))


def test_who_waited_and_fell_silent_when_another_gave_up_has_not_crashed() -> None:
    """A barrier's timeout was caught and the next operation issued: the job has just moved."""
    job = _hung()
    _gave_up(job, 0, 0.9)
    for rank in (1, 2, 3):
        beat = START + int((job.now + 0.8 + rank / 20) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_of_those_who_fell_silent_around_another_s_timeout_none_has_crashed() -> None:
    """Heartbeats come once a second: both were ended alike, one had just been heard again."""
    job = Job(3)
    job.steps(10)
    job.op(0, done=False)
    _gave_up(job, 0, 40.0)
    for rank, heard in ((1, 39.9), (2, 40.1)):
        beat = START + int((job.now + heard) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat, host="node0")
    job.rank(0, host="node0")
    assert all(f.verdict.value != "rank_crashed" for f in diagnose(job.trace()).findings)


def test_who_fell_silent_long_before_another_gave_up_has_crashed() -> None:
    job = _hung(culprit=9)
    for rank in (0, 2, 3):
        _gave_up(job, rank, 40.0)
    beat = START + int((job.now + 0.3) * SECOND)
    job.rank(1, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    assert judged(job.trace())[:2] == ("rank_crashed", (1,))


def test_who_fails_when_all_others_have_finished_was_not_swept_up() -> None:
    job = Job(4)
    job.steps(10)
    for rank in (0, 1, 3):
        finished(job, rank, job.now + 0.2)
    at_ns = START + int((job.now + 5.0) * SECOND)
    job.rank(2, alive=False, exit=ExitFacts("code", 1, at_ns=at_ns))
    assert judged(without_ring(job, 2)) == ("rank_crashed", (2,), "likely")


def test_a_bare_status_yields_to_who_destroyed_its_groups_while_others_waited() -> None:
    job = Job(4)
    job.steps(6)
    for rank in (1, 2, 3):
        job.op(rank, done=False)
        disconnect(job, rank, 0.1 * rank)
    at_ns = START + int((job.now + 1.0) * SECOND)
    job.rank(3, exception=None, exit=ExitFacts("code", 1, at_ns=at_ns))
    job.rank(0, alive=False, finalized=True, exit=ExitFacts("signal", signal=15, at_ns=at_ns))
    assert judged(without_ring(job, 3))[:2] == ("missing_rank", (0,))


def test_statuses_without_a_word_after_a_hang_explain_nothing() -> None:
    """Rank 1 slept; rank 0 gave up, the driver with it, and both processes ended with status 1."""
    job = Job(2)
    job.steps(3)
    job.op(0, done=False)
    for rank in range(2):
        end = ExitFacts("code", code=1, at_ns=START + 40 * SECOND + rank, text=WITHOUT_A_WORD)
        job.rank(rank, exit=end, alive=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))


def test_who_is_killed_after_watchdogs_have_ended_the_others_was_missing() -> None:
    """A stopped rank outlives the launcher's SIGTERM by half a minute."""
    job = _hung()
    job.rank(2, process_state="stopped")
    for rank in (0, 1, 3):
        at_ns = START + int((job.now + 20.0) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=6, at_ns=at_ns))
    kill(job, 2, 50.0)
    assert judged(job.trace()) == ("missing_rank", (2,), "certain")


def test_a_standstill_before_the_end_is_not_healthy_though_nobody_is_found_to_wait() -> None:
    """Rank 2 left in order; of what all have issued nobody saw the end."""
    for stood_s, verdict in ((30.0, "inconclusive"), (3.0, "healthy")):
        job = Job(3)
        for _ in range(4):
            job.all(done=False, flags=Flag.UNOBSERVED | Flag.ASYNC)
        for rank in (0, 1):
            kill(job, rank, stood_s)
        job.rank(2, alive=False, exit=ExitFacts("clean", 0, at_ns=START + SECOND))
        found = diagnose(job.trace())
        assert (found.verdict.value, found.culprits) == (verdict, ())
    assert "Nothing was issued for" not in found.summary
