"""A hung job is killed rank by rank in the end: none of those exits explains the hang."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import ExceptionFacts, ExitFacts, Flag, Phase
from tests.diagnosis.builder import SECOND, START, Job, judged
from tests.diagnosis.ended_jobs import disconnect, finished, hung, kill, without_ring


def test_ranks_killed_one_by_one_after_a_hang_are_victims() -> None:
    job = hung()
    for rank in (0, 2):
        kill(job, rank, 12.0)
    for rank in (1, 3):
        disconnect(job, rank, 12.1)
    assert judged(job.trace()) == ("missing_rank", (2,), "certain")


def test_unobserved_exits_count_from_the_last_sign_of_life() -> None:
    job = hung()
    for rank in (0, 2):
        beat = START + int((job.now + 11.0) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat)
    for rank in (1, 3):
        disconnect(job, rank, 12.1)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_rank_killed_in_a_step_has_crashed() -> None:
    job = hung()
    kill(job, 2, 0.2)
    for rank in (0, 1, 3):
        disconnect(job, rank, 0.3)
    assert judged(job.trace()) == ("rank_crashed", (2,), "certain")


def test_rank_killed_alone_while_others_wait_for_its_computation_has_crashed() -> None:
    job = hung()
    kill(job, 2, 30.0)
    for rank in (0, 1, 3):
        disconnect(job, rank, 30.1)
    assert judged(job.trace()) == ("rank_crashed", (2,), "certain")


def test_stopped_rank_was_not_killed_in_a_computation() -> None:
    job = hung()
    kill(job, 2, 30.0)
    job.rank(2, process_state="stopped")
    for rank in (0, 1, 3):
        disconnect(job, rank, 30.1)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_first_killed_rank_of_a_p2p_cycle_was_waiting() -> None:
    job = Job(3)
    job.steps(10)
    for rank in range(3):
        job.op(rank, "recv", peer=(rank + 1) % 3, done=False, flags=Flag.BLOCKING)
    kill(job, 2, 12.0)
    for rank in (0, 1):
        disconnect(job, rank, 12.1)
    assert judged(job.trace())[:2] == ("deadlock_cycle", (0, 1, 2))


def test_waiting_rank_killed_alone_after_a_hang_is_a_victim() -> None:
    job = hung()
    kill(job, 0, 30.0)
    for rank in (1, 3):
        disconnect(job, rank, 30.1)
    job.rank(2, alive=True)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_exit_status_alone_is_not_the_first_failure_if_others_timed_out() -> None:
    job = hung()
    at_ns = START + int((job.now + 5.0) * SECOND)
    for rank in (1, 3):
        error = ExceptionFacts("RuntimeError", "Timed out waiting 5000ms for recv", (), at_ns)
        job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=at_ns))
    job.rank(0, alive=False, exit=ExitFacts("code", 1, at_ns=at_ns))
    job.rank(2, alive=True)
    assert judged(without_ring(job, 0)) == ("missing_rank", (2,), "likely")


def test_exit_status_alone_does_not_precede_a_rank_that_left_unfinished_work() -> None:
    """Rank 2 exits with status 0 and unfinished work. Rank 0 reports the broken connection; rank 1
    only has an exit status."""
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


def test_rank_with_only_a_kill_after_the_hang_is_lost_not_crashed() -> None:
    job = hung()
    for rank in range(4):
        if rank != 3:
            kill(job, rank, 12.0)
    disconnect(job, 3, 12.1)
    assert judged(without_ring(job, 2)) == ("rank_lost", (2,), "likely")


def test_ranks_in_init_do_not_accuse_a_rank_without_ring_as_certain() -> None:
    job = Job(4)
    since = START
    for rank in range(4):
        phase = Phase("init_process_group", since)
        job.rank(rank, phases=(phase,), initialized=False, alive=True)
    job.rank(3, phases=(), initialized=None, alive=None)
    trace = without_ring(job, 3)
    assert judged(trace)[1:] in (((3,), "likely"), ((), "likely"))


def test_unobserved_exit_does_not_precede_a_mismatch_of_the_same_rank() -> None:
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


def test_two_absent_ranks_are_no_majority_if_a_member_left_nothing() -> None:
    job = Job(4, live=True)
    job.steps(10)
    job.op(2, done=False)
    for rank in (1, 3):
        job.rank(rank, finalized=False)
    job.lose(0)
    found = diagnose(job.trace())
    assert 2 not in found.culprits


def test_job_killed_after_a_standstill_outside_collectives_is_quiescent() -> None:
    job = Job(4, timeout_s=10.0)
    job.steps(10)
    for rank in range(4):
        kill(job, rank, 40.0)
    assert judged(job.trace())[:2] == ("quiescent", ())


def test_job_killed_between_two_steps_is_not_quiescent() -> None:
    job = Job(4, timeout_s=10.0)
    job.steps(10)
    for rank in range(4):
        kill(job, rank, 3.0)
    assert judged(job.trace())[0] == "healthy"


def test_start_of_a_wait_counts_as_sign_of_life() -> None:
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


def test_rank_that_waits_where_all_wait_has_not_deviated() -> None:
    verdict, culprits, confidence = judged(_circle(rank_0_is_there=True).trace())
    assert verdict == "deadlock_cycle"
    assert (culprits, confidence) in (((2, 3), "ambiguous"), ((3,), "likely"))


def test_only_ranks_that_could_break_a_cycle_are_named() -> None:
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


def test_ranks_that_exit_because_of_a_kill_do_not_count_as_moving() -> None:
    job = hung()
    for rank in (0, 2):
        kill(job, rank, 12.0)
    for rank in (1, 3):
        disconnect(job, rank, 12.1)
        leaving_ns = START + int((job.now + 12.1) * SECOND)
        job.rank(rank, phases=(Phase("interpreter exit", leaving_ns),))
    assert judged(job.trace()) == ("missing_rank", (2,), "certain")


def test_rank_that_outlives_the_stop_signal_is_a_victim() -> None:
    """A stopped process does not react to SIGTERM; the launcher kills it long after the others."""
    job = hung()
    for rank in (0, 1, 3):
        at_ns = START + int((job.now + 12.0) * SECOND)
        ended = ExitFacts("signal", signal=15, at_ns=at_ns, by_launcher=rank > 0)
        job.rank(rank, alive=False, exit=ended)
    kill(job, 2, 42.0)
    assert judged(job.trace())[:2] == ("missing_rank", (2,))


def test_rank_killed_before_the_launcher_ended_the_others_has_crashed() -> None:
    job = hung()
    kill(job, 2, 12.0)
    for rank in (0, 1, 3):
        at_ns = START + int((job.now + 12.5) * SECOND)
        ended = ExitFacts("signal", signal=15, at_ns=at_ns, by_launcher=True)
        job.rank(rank, alive=False, exit=ended)
    assert judged(job.trace())[:2] == ("rank_crashed", (2,))


def test_rank_that_fails_after_all_others_finished_was_not_torn_down() -> None:
    job = Job(4)
    job.steps(10)
    for rank in (0, 1, 3):
        finished(job, rank, job.now + 0.2)
    at_ns = START + int((job.now + 5.0) * SECOND)
    job.rank(2, alive=False, exit=ExitFacts("code", 1, at_ns=at_ns))
    assert judged(without_ring(job, 2)) == ("rank_crashed", (2,), "likely")


def test_exit_status_alone_yields_to_a_rank_that_destroyed_its_groups_early() -> None:
    job = Job(4)
    job.steps(6)
    for rank in (1, 2, 3):
        job.op(rank, done=False)
        disconnect(job, rank, 0.1 * rank)
    at_ns = START + int((job.now + 1.0) * SECOND)
    job.rank(3, exception=None, exit=ExitFacts("code", 1, at_ns=at_ns))
    job.rank(0, alive=False, finalized=True, exit=ExitFacts("signal", signal=15, at_ns=at_ns))
    assert judged(without_ring(job, 3))[:2] == ("missing_rank", (0,))


def test_exit_statuses_alone_after_a_hang_explain_nothing() -> None:
    """Rank 1 slept. Rank 0 timed out and its driver failed, and both processes exited with status
    1."""
    job = Job(2)
    job.steps(3)
    job.op(0, done=False)
    for rank in range(2):
        end = ExitFacts("code", code=1, at_ns=START + 40 * SECOND + rank, text=WITHOUT_A_WORD)
        job.rank(rank, exit=end, alive=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))


def test_rank_killed_after_watchdogs_ended_the_others_was_missing() -> None:
    """A stopped rank outlives the launcher's SIGTERM by half a minute."""
    job = hung()
    job.rank(2, process_state="stopped")
    for rank in (0, 1, 3):
        at_ns = START + int((job.now + 20.0) * SECOND)
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=6, at_ns=at_ns))
    kill(job, 2, 50.0)
    assert judged(job.trace()) == ("missing_rank", (2,), "certain")


def test_standstill_before_the_exit_is_not_healthy_without_waiters() -> None:
    """Rank 2 exited cleanly; no rank observed the completion of what all have issued."""
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


@pytest.mark.parametrize(
    ("error", "others_s", "signal", "expected"),
    [
        ("ConnectionResetError", 12.01, None, "missing_rank"),
        ("EOFError", 11.95, None, "missing_rank"),
        ("ConnectionResetError", 12.3, 9, "missing_rank"),  # it was killed on its way out
        ("ConnectionResetError", 13.0, None, "rank_crashed"),  # as a launcher answers its failure
        ("ValueError", 12.01, None, "rank_crashed"),
    ],
)
def test_rank_waiting_for_a_driver_that_was_killed_with_all_has_not_crashed(
    error: str, others_s: float, signal: int | None, expected: str
) -> None:
    job = hung()
    at_ns = START + int((job.now + 12.0) * SECOND)
    raised = ExceptionFacts(error, "", (), at_ns=at_ns)
    job.rank(2, alive=False, exception=raised, exit=ExitFacts("exception", 1, signal, at_ns))
    for rank in (0, 1, 3):
        kill(job, rank, others_s)
    assert judged(job.trace())[:2] == (expected, (2,))
