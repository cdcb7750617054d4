"""Jobs that move, have ended, or stand still without a recorded wait."""

from __future__ import annotations

from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace import formats
from hangscope.trace.model import ExitFacts, Frame, KernelWait, Source, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job, blame


def test_wait_shorter_than_the_timeout_is_healthy_while_alive() -> None:
    job = Job(4, live=True, timeout_s=120)
    job.steps(5)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    found = diagnose(job.trace(after_s=60))
    assert found.verdict is Verdict.HEALTHY
    assert not found.findings
    assert found.notes == (
        "ranks 0, 1, 3 wait for rank 2 in all_reduce #6 in group default, for 1 min so far; it"
        " counts as a hang after 2 min (HANGSCOPE_TIMEOUT)",
    )


def test_pause_no_longer_than_the_pace_explains_is_not_remarked() -> None:
    job = Job(4, live=True, timeout_s=120)
    job.steps(5)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    assert diagnose(job.trace(after_s=1)).notes == ()


def test_remark_on_waits_names_where_they_began() -> None:
    job = Job(4, live=True, timeout_s=120)
    pair = job.group(2, 3, desc="pair")
    job.steps(5)
    for rank in (0, 1):
        job.op(rank, done=False)
    job.op(2, group=pair, done=False, at=job.now + 5.0)
    (note,) = diagnose(job.trace(after_s=30)).notes
    assert note.startswith("rank 2 waits for rank 3 in all_reduce #1 in group pair, for 30 s")


def test_clean_end_is_healthy() -> None:
    job = Job(4)
    job.steps(3)
    for rank in range(4):
        job.rank(rank, alive=False, exit=ExitFacts("clean", code=0, at_ns=START + SECOND))
    found = diagnose(job.trace())
    assert found.verdict is Verdict.HEALTHY
    assert not found.findings


def test_all_killed_at_once_accuses_no_rank() -> None:
    job = Job(4)
    job.steps(30)
    for rank in (0, 1):
        job.op(rank, done=False)
    for rank in range(4):
        job.rank(
            rank, alive=False, exit=ExitFacts("signal", signal=9, at_ns=START + SECOND // 10 + rank)
        )
    assert diagnose(job.trace()).culprits == ()


def test_job_that_has_finished_everything_and_stands_still_is_quiescent() -> None:
    job = Job(4)
    job.steps(5)
    assert diagnose(job.trace()).verdict is Verdict.QUIESCENT


@pytest.mark.parametrize(("silent_s", "verdict"), [(60.0, "healthy"), (90.0, "quiescent")])
def test_a_silence_counts_when_it_is_long_for_this_job(silent_s: float, verdict: str) -> None:
    job = Job(4, live=True)
    job.steps(5)
    for rank in range(4):
        job.op(rank, at=job.now + 40.0 if rank == 0 else None)  # everybody prepared data
    assert diagnose(job.trace(silent_s)).verdict.value == verdict


def test_a_wait_for_one_rank_was_no_silence() -> None:
    job = Job(4, live=True)
    job.steps(5)
    job.op(0, done=False)
    waits = job.rows[-1]
    for rank in (1, 2, 3):
        job.op(rank, at=job.now + 40.0 if rank == 1 else None)
    waits["state"], waits["completed_ns"] = job.rows[-1]["state"], job.rows[-1]["completed_ns"]
    assert diagnose(job.trace(60.0)).verdict is Verdict.QUIESCENT


def test_verdict_without_any_evidence_is_inconclusive() -> None:
    job = Job(2)
    job.lose(0, 1)
    assert diagnose(job.trace(world_size=None)).verdict is Verdict.INCONCLUSIVE


def test_half_a_world_of_dumps_accuses_no_rank() -> None:
    job = Job(8)
    job.steps(3)
    job.all(done=False)
    job.lose(4, 5, 6, 7)
    found = diagnose(job.trace())
    assert blame(found) == ("inconclusive", ())
    assert any("left no record" in u for u in found.findings[0].unknowns)


def test_ranks_that_all_exited_cleanly_wait_for_nothing() -> None:
    job = Job(4)
    job.steps(3)
    job.all(done=False)
    for rank in range(4):
        job.rank(rank, alive=False, exit=ExitFacts("clean", code=0, at_ns=START + SECOND))
    assert diagnose(job.trace()).verdict is Verdict.HEALTHY


def test_dump_of_a_moving_job_is_healthy() -> None:
    job = Job(4)
    job.steps(20)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    for rank in range(4):
        job.rank(rank, observed_ns=START + int((job.now + 0.3) * SECOND))
    found = diagnose(job.trace(after_s=0.3))
    assert found.verdict is Verdict.HEALTHY
    assert "moving" in found.notes[0]


@pytest.mark.parametrize(("share", "verdict"), [(0.15, "healthy"), (0.02, "quiescent")])
def test_computing_job_on_a_busy_machine_is_not_quiescent(share: float, verdict: str) -> None:
    job = Job(4, live=True)
    job.steps(5)
    for rank in range(4):
        job.rank(rank, cpu_busy=share, stack_moved=False)
    assert diagnose(job.trace()).verdict.value == verdict


def _not_begun(at: str, **facts: Any) -> Job:
    """A running job whose ranks have issued nothing; all stand in ``at``."""
    job = Job(2, live=True)
    stack = (Frame("wait", at, 50), Frame("<module>", "/home/me/train.py", 6))
    main = ThreadStack("MainThread", True, stack, START)
    for rank in range(2):
        job.rank(rank, started_ns=START, threads=(main,), **facts)
    return job


_BATON = "/x/site-packages/torch/utils/file_baton.py"


def test_running_job_without_operations_in_a_build_lock() -> None:
    """A process was killed while it built an extension. Only further looks can show that this
    lasts."""
    found = diagnose(_not_begun(_BATON, stack_moved=False, cpu_busy=0.01).trace())
    assert blame(found) == ("quiescent", ())
    first = found.findings[0]
    assert first.unchanged_s == 10.0
    assert first.summary.startswith("The job has not begun, and ranks 0, 1 stand still")
    assert "delete the file `lock`" in first.fix


@pytest.mark.parametrize(
    ("at", "facts"),
    [
        ("/home/me/prepare.py", {}),  # its own code: that may return
        (_BATON, {"stack_moved": True}),
        (_BATON, {"cpu_busy": 0.9}),
    ],
)
def test_running_job_without_operations_may_be_slow(at: str, facts: dict[str, Any]) -> None:
    assert diagnose(_not_begun(at, **facts).trace()).verdict is Verdict.HEALTHY


def test_job_just_started_has_time_to_begin() -> None:
    assert diagnose(_not_begun(_BATON).trace(after_s=9.0)).verdict is Verdict.HEALTHY


def test_one_rank_with_progress_keeps_the_job_from_standing_still() -> None:
    job = _not_begun(_BATON)
    job.rank(1, threads=())
    assert diagnose(job.trace()).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("lived_s", "at", "expected"),
    [
        (100.0, "/x/site-packages/torch/utils/file_baton.py", "inconclusive"),
        (5.0, "/x/site-packages/torch/utils/file_baton.py", "healthy"),
        (100.0, "/home/me/prepare.py", "healthy"),
    ],
)
def test_ranks_killed_before_their_first_operation(lived_s: float, at: str, expected: str) -> None:
    """A process was killed while it built an extension: its lock is left, and all wait for it."""
    job = Job(2)
    end = ExitFacts("signal", signal=9, at_ns=START + int(lived_s * SECOND))
    stack = (Frame("wait", at, 50), Frame("<module>", "/home/me/train.py", 6))
    for rank in range(2):
        main = ThreadStack("MainThread", True, stack, START)
        job.rank(rank, alive=False, exit=end, started_ns=START, threads=(main,))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == (expected, ())
    if expected == "inconclusive":
        assert found.summary == "Ranks 0, 1 had issued nothing for 1 min 40 s when they were ended"
        assert "delete the file `lock`" in found.findings[0].fix


@pytest.mark.parametrize("ended", [False, True])
def test_blocked_before_the_first_operation_and_no_stacks(ended: bool) -> None:
    """``HANGSCOPE_STACKS=0``: only the kernel says what the ranks wait for."""
    job = Job(2, live=not ended)
    wait = KernelWait("pipe", names=("feeder (pid 7)",), since_ns=START)
    for rank in range(2):
        job.rank(rank, started_ns=START, wait=wait, stack_moved=False, cpu_busy=0.0)
        if ended:
            end = ExitFacts("signal", signal=9, at_ns=START + 100 * SECOND)
            job.rank(rank, alive=False, exit=end)
    found = diagnose(job.trace())
    assert found.verdict.value == ("inconclusive" if ended else "quiescent")
    assert "feeder (pid 7)" in found.findings[0].evidence[0]


def test_health_of_a_rank_that_left_nothing_is_not_claimed() -> None:
    """Three of four ended well: what the fourth did is not known."""
    for lost in ((), (3,)):
        job = Job(4)
        job.steps(3)
        for rank in range(4):
            job.rank(rank, alive=False, exit=ExitFacts("clean", code=0, at_ns=START + SECOND))
        job.lose(*lost)
        sources = tuple(Source(f"rank_{r}.ring", formats.RING, rank=r) for r in job.facts)
        found = diagnose(job.trace(sources=sources))
        assert (found.verdict is Verdict.HEALTHY) is not bool(lost)
        if lost:
            assert blame(found) == ("inconclusive", ())
            assert "rank 3" in found.findings[0].fix
