"""How processes end shows who was first: failures, echoes, signals, and unobserved ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import (
    ON_ITS_WAY_OUT,
    ExceptionFacts,
    ExitFacts,
    Frame,
    Phase,
    ThreadStack,
)
from tests.diagnosis.builder import SECOND, START, Job, blame
from tests.diagnosis.failing_jobs import END, TORCH, error_of, job_that_waits

CLIENT = Frame("request", "/site-packages/http/client.py", 1)


def test_unobserved_exits_of_all_are_inconclusive() -> None:
    job = job_that_waits()
    for rank in range(4):
        job.rank(rank, alive=False, exit=ExitFacts("unknown", at_ns=END + rank), heartbeat_ns=END)
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("inconclusive", ())
    assert "nothing on record says how" in found.summary


def test_unobserved_exits_after_completion_are_healthy() -> None:
    job = job_that_waits(waiting=())
    for rank in range(4):
        job.rank(rank, alive=False, finalized=True, exit=ExitFacts("unknown", at_ns=END + rank))
    assert diagnose(job.trace(after_s=6)).verdict is Verdict.HEALTHY


def test_ranks_killed_from_outside_beside_a_rank_without_records() -> None:
    job = job_that_waits(waiting=())
    for rank in range(4):
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=9, at_ns=END + rank))
    job.lose(1)
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("inconclusive", ())
    assert "rank 1 left nothing" in found.summary


@pytest.mark.parametrize(("frame", "verdict"), [(CLIENT, "rank_crashed"), (TORCH, "inconclusive")])
def test_broken_connection_is_own_failure_unless_it_was_to_a_peer(
    frame: Frame, verdict: str
) -> None:
    """Two ranks failed; both are at fault only if neither mentions the other."""
    job = job_that_waits(waiting=())
    for rank in (1, 2):
        reset = error_of("ConnectionResetError", "Connection reset by peer", frame)
        job.rank(rank, alive=False, exception=reset, exit=ExitFacts("exception", 1, at_ns=END))
    for rank in (0, 3):
        told = ExitFacts("signal", signal=15, at_ns=END + SECOND, by_launcher=True)
        job.rank(rank, alive=False, exit=told)
    assert diagnose(job.trace(after_s=6)).verdict.value == verdict


def test_single_failure_outlived_by_all_others_is_own_failure() -> None:
    """Its message is that of an echo, but no other rank failed."""
    job = job_that_waits(waiting=())
    lost = error_of("RuntimeError", "Gloo connectFullMesh failed: timed out connecting", TORCH)
    job.rank(1, alive=False, host="a", exception=lost, exit=ExitFacts("exception", 1, at_ns=END))
    for rank in (0, 2, 3):
        gone = ExitFacts("unknown", at_ns=END + SECOND)
        job.rank(rank, alive=False, host="a", exit=gone, heartbeat_ns=END + SECOND // 5)
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("rank_crashed", (1,))
    assert found.confidence is Confidence.LIKELY


def test_unobserved_exit_before_the_echoes_is_the_cause() -> None:
    job = job_that_waits()
    for rank in (0, 2, 3):
        echo = error_of("RuntimeError", "Connection closed by peer", TORCH)
        job.rank(rank, alive=False, host="a", exception=echo, exit=ExitFacts("exception", 1))
    gone = ExitFacts("unknown", at_ns=END + SECOND)
    job.rank(1, alive=False, host="a", exit=gone, heartbeat_ns=END - SECOND // 5)
    assert blame(diagnose(job.trace(after_s=6))) == ("rank_crashed", (1,))


def test_echo_is_not_named_with_the_cause() -> None:
    """Ranks 1 and 3 are both missing from the barrier; rank 1 only reports that its peer exited."""
    job = job_that_waits(waiting=(0, 2))
    for rank in (0, 1, 2):
        echo = error_of("RuntimeError", "Connection reset by peer", TORCH)
        job.rank(rank, alive=False, exception=echo, exit=ExitFacts("exception", 1, at_ns=END))
    job.rank(3, alive=False, exit=ExitFacts("signal", signal=6, at_ns=END))
    assert blame(diagnose(job.trace(after_s=6))) == ("rank_crashed", (3,))


def test_checkpoint_exception_accuses_the_ranks_it_names() -> None:
    job = job_that_waits(waiting=())
    for rank in range(4):
        raised = error_of("CheckpointException", "CheckpointException ranks:dict_keys([2])", TORCH)
        job.rank(rank, alive=False, exception=raised, exit=ExitFacts("exception", 1, at_ns=END))
    assert blame(diagnose(job.trace(after_s=6))) == ("rank_crashed", (2,))


def test_dead_thread_is_reported_but_is_not_the_process_exit() -> None:
    job = job_that_waits()
    failed = replace(
        error_of("builtins.ValueError", "shard 4 is cut off", Frame("feed", "/home/me/data.py", 7)),
        thread_name="feeder",
        is_main_thread=False,
    )
    job.rank(1, exception=failed)
    for rank in range(4):
        job.rank(
            rank, alive=False, exit=ExitFacts("signal", signal=9, at_ns=START + 90 * SECOND + rank)
        )
    found = diagnose(job.trace(after_s=91))
    assert blame(found) == ("missing_rank", (1,))
    assert any(
        "its thread feeder ended with ValueError: shard 4 is cut off at data.py:7" in line
        for line in found.findings[0].evidence
    )


def test_ranks_with_different_world_sizes() -> None:
    job = Job(4, live=True)
    for rank in range(4):
        job.rank(
            rank,
            phases=(Phase("init_process_group", START),),
            initialized=False,
            world_size=5 if rank == 3 else 4,
        )
    found = diagnose(job.trace())
    assert blame(found) == ("argument_mismatch", (3,))
    assert "rank 3 expects 5 ranks" in found.summary


def test_single_process_is_never_quiescent() -> None:
    job = Job(1, live=True, timeout_s=5)
    job.steps(3)
    assert diagnose(job.trace()).verdict is Verdict.HEALTHY


def test_exception_is_judged_by_its_first_cause() -> None:
    """Rank 0 wraps the connection that broke when rank 2 failed; rank 2 wraps its own error."""
    job = Job(3)
    job.steps(12)
    words = "Failed to run a stage:\nargs: 3"
    for rank, cause, at_ns in (
        (0, "RuntimeError: Connection closed by peer [127.0.0.1]:5535", END),
        (2, "ValueError: only scalars have a gradient", END + SECOND // 10),
    ):
        error = error_of("RuntimeError", f"{words}\ncaused by {cause}", TORCH, at_ns=at_ns)
        job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=at_ns))
    job.lose(1)
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("rank_crashed", (2,))
    assert "caused by ValueError: only scalars have a gradient" in found.summary


def test_a_cause_that_its_wrapper_repeats_is_said_once() -> None:
    job = job_that_waits(3, waiting=(0, 1))
    words = "no such layer\ncaused by KeyError: no such layer"
    error = error_of("RuntimeError", words, TORCH, at_ns=END)
    job.rank(2, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=END))
    summary = diagnose(job.trace(after_s=6)).summary
    assert "RuntimeError: no such layer (caused by KeyError)" in summary


def test_rank_that_exited_by_itself_may_have_timed_out() -> None:
    """``raise SystemExit(3)`` and the end of the script look alike to the process itself."""
    job = job_that_waits(3, waiting=(0, 1))
    job.rank(2, alive=False, exit=ExitFacts("clean", at_ns=END))
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("rank_exited", (2,))
    assert found.confidence is Confidence.LIKELY
    assert "status 0" not in found.summary
    job.rank(2, exit=ExitFacts("clean", 0, at_ns=END))
    found = diagnose(job.trace(after_s=6))
    assert found.confidence is Confidence.CERTAIN
    assert "exited with status 0" in found.summary


def test_abort_during_exit_is_an_earlier_exit() -> None:
    job = job_that_waits(3, waiting=(0, 1))
    left = ExitFacts("signal", signal=6, at_ns=END, text=ON_ITS_WAY_OUT)
    stack = (Frame("step", "/home/me/train.py", 10),)
    job.rank(
        2,
        alive=False,
        exit=left,
        phases=(Phase("interpreter exit", END),),
        threads=(ThreadStack("MainThread", True, stack, START),),
    )
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("rank_crashed", (2,))
    first = found.findings[0]
    assert "killed by SIGABRT on its way out" in first.summary
    assert "SystemExit" in first.fix
    assert [side.stack for side in first.sides if side.ranks == (2,)] == [()]


def test_abort_after_completion_blocked_no_rank() -> None:
    job = job_that_waits(3, waiting=())
    for rank in (0, 1):
        job.rank(rank, alive=False, finalized=True, exit=ExitFacts("clean", code=0, at_ns=END))
    late = ExitFacts("signal", signal=6, at_ns=END, text=ON_ITS_WAY_OUT)
    job.rank(2, alive=False, finalized=True, exit=late)
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("rank_crashed", (2,))
    first = found.findings[0]
    assert "no rank is known to wait" in first.why
    assert "the others still needed it" not in first.fix
    assert "destroy_process_group" not in first.fix


def test_rank_silent_long_before_the_others_may_have_been_stopped() -> None:
    """Rings alone, after the job was killed: only the last heartbeat of each rank is known."""
    job = job_that_waits(3, waiting=(0, 1))
    for rank, after_s in ((0, 60), (1, 60), (2, 1)):
        beat_ns = START + after_s * SECOND
        job.rank(rank, alive=False, exit=ExitFacts("unknown"), heartbeat_ns=beat_ns, host="n0")
    found = diagnose(job.trace(after_s=90))
    assert blame(found) == ("rank_crashed", (2,))
    assert found.confidence is Confidence.LIKELY
    assert any("falls silent" in line for line in found.findings[0].unknowns)


def _two_failures(first_s: float, second_s: float, second: str, *, waiting: bool) -> Diagnosis:
    """Ranks 1 and 3 fail with exceptions of their own at these times after the start; 0:
    unknown."""
    job = job_that_waits(waiting=(0, 2) if waiting else ())
    told = ((1, first_s, "bad loss"), (3, second_s, second))
    for rank, at_s, said in told:
        at_ns = END + int(at_s * SECOND) if at_s else 0
        job.rank(
            rank,
            alive=False,
            exit=ExitFacts("code", code=1, at_ns=at_ns),
            exception=ExceptionFacts("builtins.ValueError", said, at_ns=at_ns),
        )
    if not waiting:
        for rank in (0, 2):
            end = ExitFacts("signal", signal=15, by_launcher=True, at_ns=END + 60 * SECOND)
            job.rank(rank, alive=False, exit=end)
    return diagnose(job.trace(after_s=90))


@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize(
    ("first_s", "second_s", "second", "culprits", "confidence"),
    [
        (5, 0, "bad image", (1, 3), Confidence.AMBIGUOUS),
        (0, 5, "bad image", (1, 3), Confidence.AMBIGUOUS),
        (0, 0, "bad image", (1, 3), Confidence.AMBIGUOUS),
        (0, 0, "bad loss", (1, 3), Confidence.CERTAIN),
        (9, 5, "bad image", (3,), Confidence.CERTAIN),
        (5, 5.5, "bad loss", (1, 3), Confidence.CERTAIN),
    ],
)
def test_first_of_two_failures_is_named_if_times_are_known(
    waiting: bool,
    first_s: float,
    second_s: float,
    second: str,
    culprits: tuple[int, ...],
    confidence: Confidence,
) -> None:
    found = _two_failures(first_s, second_s, second, waiting=waiting)
    assert blame(found) == ("rank_crashed", culprits)
    assert found.confidence is confidence
    assert set(found.findings[0].victims) == set(range(4)) - set(culprits)


@pytest.mark.parametrize(("lost", "blamed"), [(True, 1), (False, 2)])
def test_abort_in_an_exchange_is_no_own_failure_beside_a_rank_without_a_dump(
    lost: bool, blamed: int
) -> None:
    """Gloo aborts the rank that receives another size than it asked for, whoever sent it."""
    job = job_that_waits(waiting=(0, 2, 3))
    aborted = ExitFacts("signal", signal=6, at_ns=END)
    stack = (TORCH, Frame("step", "/job/train.py", 7))
    job.rank(2, alive=False, exit=aborted, threads=(ThreadStack("MainThread", True, stack, START),))
    if lost:
        job.lose(1)
    found = diagnose(job.trace(after_s=6))
    assert found.culprits == (blamed,)
    assert found.verdict is (Verdict.RANK_LOST if lost else Verdict.RANK_CRASHED)


@pytest.mark.parametrize(("finalized", "verdict"), [(True, "healthy"), (False, "rank_crashed")])
def test_rank_that_destroyed_its_groups_may_exit_with_any_status(
    finalized: bool, verdict: str
) -> None:
    """Ray's workers exit with status 1 and no message once their driver is done."""
    job = Job(2)
    job.steps(3)
    for rank in range(2):
        at_ns = START + int((job.now + 0.5) * SECOND)
        end = ExitFacts("code", code=1, at_ns=at_ns, text=WITHOUT_A_WORD)
        job.rank(rank, finalized=finalized, exit=end, alive=False)
    assert diagnose(job.trace()).verdict.value == verdict


@pytest.mark.parametrize(
    "end", [ExitFacts("signal", signal=6, at_ns=END), ExitFacts("code", code=134, at_ns=END)]
)
def test_abort_without_a_message_is_no_certain_crash(end: ExitFacts) -> None:
    """A watchdog aborts its process, too; a shell makes a status of the signal."""
    job = job_that_waits()
    job.rank(1, alive=False, exit=end)
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("rank_crashed", (1,))
    assert found.confidence is Confidence.LIKELY


def test_addresses_at_which_nobody_listens_are_told_as_such() -> None:
    """After a restart the store may still hold those of the attempt before."""
    words = (
        "Gloo connectFullMesh failed with [/w/third_party/gloo/gloo/transport/tcp/pair.cc:152] "
        "timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:29101$0"
    )
    job = Job(3)
    for rank in range(3):
        error = error_of("RuntimeError", words, TORCH, at_ns=END)
        job.rank(rank, alive=False, exception=error, exit=ExitFacts("exception", 1, at_ns=END))
    found = diagnose(job.trace(after_s=6))
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())
    assert found.summary.startswith("Ranks found nobody at the addresses")
    assert "the attempt before" in found.findings[0].fix
