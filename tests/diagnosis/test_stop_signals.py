"""Ranks that were told to stop: a launcher's signal is no failure of theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import (
    ExitFacts,
)
from tests.diagnosis.builder import SECOND, Job, blame
from tests.diagnosis.failing_jobs import END, TORCH, error_of, job_that_waits


def test_sigterm_to_all_recorded_ranks_may_answer_the_unrecorded_one() -> None:
    job = job_that_waits()
    for rank in range(4):
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=15, at_ns=END + rank))
    job.lose(1)
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("rank_lost", (1,))
    assert found.confidence is Confidence.LIKELY


def test_single_rank_that_was_signalled_has_crashed() -> None:
    job = job_that_waits()
    job.rank(1, alive=False, exit=ExitFacts("signal", signal=15, at_ns=END))
    for rank in (0, 2, 3):
        echo = error_of("RuntimeError", "Connection reset by peer", TORCH, at_ns=END - SECOND // 50)
        job.rank(rank, alive=False, exception=echo, exit=ExitFacts("exception", 1, at_ns=END))
    found = diagnose(job.trace(after_s=6))
    assert blame(found) == ("rank_crashed", (1,))
    assert "SIGTERM" in found.summary


def test_all_signalled_together_accuses_no_rank() -> None:
    job = job_that_waits()
    for rank in range(4):
        told = ExitFacts("signal", signal=15, at_ns=END + rank * 1000, by_launcher=rank > 0)
        job.rank(rank, alive=False, exit=told)
    found = diagnose(job.trace(after_s=6))
    assert (found.verdict, found.culprits) == (Verdict.HEALTHY, ())
    assert any("SIGTERM" in note for note in found.notes)


@pytest.mark.parametrize("by_launcher", [True, False])
@pytest.mark.parametrize(
    ("late_s", "error", "verdict"),
    [
        (5, None, "healthy"),
        (30, None, "healthy"),
        (5, "preempted", "healthy"),
        (0, None, "rank_crashed"),
        (-3, "bad loss", "rank_crashed"),
    ],
)
def test_rank_exiting_with_a_status_after_all_were_signalled_has_not_failed(
    late_s: int, error: str | None, verdict: str, by_launcher: bool
) -> None:
    job = job_that_waits(waiting=())
    for rank in (1, 2, 3):
        end = ExitFacts("signal", signal=15, by_launcher=by_launcher, at_ns=END + rank)
        job.rank(rank, host="node0", alive=False, exit=end)
    at_ns = END + late_s * SECOND
    own = error_of("builtins.RuntimeError", error, at_ns=at_ns) if error is not None else None
    job.rank(
        0, host="node0", alive=False, exit=ExitFacts("code", code=1, at_ns=at_ns), exception=own
    )
    assert diagnose(job.trace(after_s=60)).verdict.value == verdict


def test_rank_failing_after_another_failure_and_the_stop_is_no_cause() -> None:
    job = job_that_waits(waiting=())
    for rank, late_s, code in ((0, 5, 1), (2, -3, 3)):
        end = ExitFacts("code", code=code, at_ns=END + late_s * SECOND)
        job.rank(rank, host="node0", alive=False, exit=end)
    for rank in (1, 3):
        end = ExitFacts("signal", signal=15, by_launcher=True, at_ns=END + rank)
        job.rank(rank, host="node0", alive=False, exit=end)
    found = diagnose(job.trace(after_s=60))
    assert blame(found) == ("rank_crashed", (2,))


def test_failure_after_another_rank_was_signalled_is_not_the_reason() -> None:
    """The ring of the failed rank is gone: only its exit status and its time are known."""
    job = job_that_waits()
    job.rank(1, alive=False, host="a", exit=ExitFacts("signal", signal=15, at_ns=END))
    reset = error_of("builtins.RuntimeError", "Connection reset by peer", TORCH, at_ns=END)
    for rank in (2, 3):
        job.rank(rank, alive=False, host="a", exception=reset)
    job.rank(0, alive=False, host="a", exit=ExitFacts("code", code=1, at_ns=END + 2 * SECOND))
    assert blame(diagnose(job.trace(after_s=6))) == ("rank_crashed", (1,))
    job.rank(0, exit=ExitFacts("code", code=1, at_ns=END - SECOND // 2))
    assert blame(diagnose(job.trace(after_s=6))) == ("rank_crashed", (0,))


@pytest.mark.parametrize("hosts", [1, 3])
def test_launchers_of_several_hosts_that_were_signalled(hosts: int) -> None:
    """A healthy job is stopped: ranks of hosts signalled later lose connections before. On one host
    the same exits are those of a signalled host, and of its echoes."""
    closed = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4711"
    job = job_that_waits(6, waiting=(2, 3, 4, 5))
    for rank in range(6):
        node, at_ns = rank // 2, END + rank * SECOND // 100
        first = rank % 2 == 0 and node < hosts
        exit_ = ExitFacts("signal", signal=15, at_ns=at_ns, by_launcher=not first)
        job.rank(rank, alive=False, host=f"h{node}", exit=exit_, heartbeat_ns=END)
        if node:
            exit_ = replace(exit_, kind="exception", code=1, signal=15 if first else None)
            echo = error_of("RuntimeError", closed, TORCH, at_ns=at_ns)
            job.rank(rank, exit=exit_, exception=echo)
    found = diagnose(job.trace(after_s=6))
    expected = ("rank_crashed", (0, 1)) if hosts == 1 else ("healthy", ())
    assert blame(found) == expected


@pytest.mark.parametrize(
    ("later_s", "by_launcher", "expected"),
    [
        (0.01, False, ((0, 1), "certain")),
        (0.01, True, ((0, 1), "likely")),  # a launcher may be quick to answer
        (0.3, True, ((0,), "certain")),
    ],
)
@pytest.mark.parametrize("live", [False, True])
def test_one_host_is_signalled_while_the_others_continue(
    later_s: float, by_launcher: bool, expected: tuple[tuple[int, ...], str], live: bool
) -> None:
    job = Job(6, live=live)
    job.steps(20)
    for rank in range(2, 6):
        job.op(rank, done=False)
    for rank in range(6):
        job.rank(rank, host=f"h{rank // 2}", pid=10 + rank)
    for rank in range(2):
        at_ns = END + int(rank * later_s * SECOND)
        exit_ = ExitFacts("signal", signal=15, at_ns=at_ns, by_launcher=by_launcher and rank == 1)
        job.rank(rank, alive=False, exit=exit_)
    if not live:
        closed = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4711"
        for rank in range(2, 6):
            at_ns = END + SECOND
            echo = error_of("RuntimeError", closed, TORCH, at_ns=at_ns)
            job.rank(rank, alive=False, exception=echo, exit=ExitFacts("exception", at_ns=at_ns))
    found = diagnose(job.trace(after_s=20))
    assert blame(found) == ("rank_crashed", expected[0])
    assert found.confidence.value == expected[1]
