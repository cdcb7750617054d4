"""Hosts that vanished: their rings record no end, and the others outlive them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame
from tests.diagnosis.builder import SECOND, START, Job

TORCH = Frame("all_reduce", "/site-packages/torch/distributed/distributed_c10d.py", 1)
CLIENT = Frame("request", "/site-packages/http/client.py", 1)
END = START + SECOND
CLOSED = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711"


def found(*, words: str = CLOSED, at: Frame = TORCH, **of_rank_3: Any) -> Diagnosis:
    """Three hosts of two ranks each: all but those of the second came to the next collective."""
    job = Job(6)
    job.steps(20)
    for rank in (0, 1, 4, 5):
        job.op(rank, done=False)
        failure = ExceptionFacts("RuntimeError", words, (at,), at_ns=END + rank)
        job.rank(rank, alive=False, exit=ExitFacts("exception", at_ns=END + rank),
                 exception=failure, heartbeat_ns=END)  # fmt: skip
    for rank in range(6):
        job.rank(rank, host=f"h{rank // 2}", pid=12 + rank % 2)
    for rank in (2, 3):
        job.rank(rank, heartbeat_ns=END - SECOND // 2)
    job.facts[3] = replace(job.facts[3], **of_rank_3)
    return diagnose(job.trace(after_s=6))


def test_ranks_of_a_vanished_host_have_ended() -> None:
    answer = found()
    assert (answer.verdict, answer.culprits) == (Verdict.RANK_CRASHED, (2, 3))
    assert answer.confidence is Confidence.LIKELY
    assert "fell silent together with the whole host" in answer.summary


@pytest.mark.parametrize(
    "how",
    [
        {"heartbeat_ns": END + 10 * SECOND},  # it lives on
        {"host": "h0"},  # somebody has seen others of its host end, but not it
        {"words": "Connection reset by peer", "at": CLIENT},  # of a rank's own data server
        {"words": "Timed out waiting 60000ms for recv operation to complete"},
    ],
)
def test_vanished_host_is_concluded_only_if_nothing_else_closed_connections(
    how: dict[str, Any],
) -> None:
    assert found(**how).verdict is not Verdict.RANK_CRASHED or found(**how).culprits != (2, 3)


def test_vanished_host_is_not_concluded_if_another_rank_exited_cleanly() -> None:
    job_over = ExitFacts("clean", code=0, at_ns=END - SECOND // 4)
    assert found(alive=False, exit=job_over).culprits != (2, 3)


@pytest.mark.parametrize("hosts", [3, 5])
def test_two_hosts_vanished_at_once_are_reported(hosts: int) -> None:
    job = Job(2 * hosts)
    job.steps(20)
    for rank in range(2 * hosts):
        job.rank(rank, host=f"h{rank // 2}", heartbeat_ns=END - SECOND // 2)
    for rank in range(4, 2 * hosts):
        job.op(rank, done=False)
        failure = ExceptionFacts("RuntimeError", CLOSED, (TORCH,), at_ns=END + rank)
        job.rank(rank, alive=False, exit=ExitFacts("exception", at_ns=END + rank),
                 exception=failure, heartbeat_ns=END)  # fmt: skip
    answer = diagnose(job.trace(after_s=6))
    assert (answer.verdict, answer.culprits) == (Verdict.RANK_CRASHED, (0, 1, 2, 3))
    assert answer.confidence is Confidence.LIKELY


def silent(
    *,
    beat_s: float = 0.5,
    later_s: float = 0.0,
    every_s: float = 1.0,
    others_s: float = 40.0,
    step: bool = False,
    came: tuple[int, ...] = (),
) -> Diagnosis:
    """Four hosts of one rank; of the last two nothing was heard after the others began to wait.

    ``beat_s``: after that, their last heartbeats, with ``later_s`` more for rank 2; ``every_s``:
    between heartbeats; ``others_s``: those of the others; ``step``: whether the others have
    finished a step since that those do not know of; ``came``: who of them had issued what the
    others wait in.
    """
    job = Job(4, live=True)
    job.steps(20)
    stood_s = job.now
    for rank in (0, 1):
        if step:
            job.op(rank, at=stood_s + 6)
        job.op(rank, done=False, at=stood_s + 7 if step else None)
    for rank in came:
        job.op(rank, done=False)
    for rank in range(4):
        gone = rank > 1
        at_s = stood_s + (beat_s + later_s * (rank == 2) if gone else others_s)
        job.rank(rank, host=f"h{rank}", alive=None if gone else True, pid=7,
                 heartbeat_ns=START + int(at_s * SECOND), heartbeat_interval_s=every_s)  # fmt: skip
    return diagnose(job.trace(after_s=others_s))


def test_hosts_silent_long_before_the_others_have_ended() -> None:
    answer = silent()
    assert (answer.verdict, answer.culprits) == (Verdict.RANK_CRASHED, (2, 3))
    assert answer.confidence is Confidence.LIKELY
    assert "fell silent" in answer.summary
    assert answer.findings[0].hosts_silent


def test_pending_operations_of_a_vanished_host_make_it_no_victim() -> None:
    answer = silent(came=(2,))
    assert (answer.verdict, answer.culprits) == (Verdict.RANK_CRASHED, (2, 3))
    assert answer.findings[0].victims == (0, 1)
    (waiting,) = (s for s in answer.findings[0].sides if 0 in s.ranks)
    assert waiting.waiting_s is not None
    assert waiting.waiting_s > 30


@pytest.mark.parametrize(("later_s", "culprits"), [(2.0, (2, 3)), (2.1, (3,))])
def test_hosts_silent_within_two_seconds_are_named_together(
    later_s: float, culprits: tuple[int, ...]
) -> None:
    answer = silent(came=(2,), later_s=later_s, every_s=2.0)
    assert answer.culprits == culprits


@pytest.mark.parametrize(
    "how",
    [
        {"beat_s": 20.0},  # copied while the job hung
        {"step": True},  # copied while it moved
        {"others_s": 5.0},  # heartbeats may be late
    ],
)
def test_ring_copied_earlier_shows_no_end(how: dict[str, Any]) -> None:
    assert silent(**how).verdict is not Verdict.RANK_CRASHED
