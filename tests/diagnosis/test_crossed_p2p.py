"""Receives from the wrong rank, sends to the wrong one, and sends nobody receives."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import Flag, Frame, ThreadStack
from tests.diagnosis.builder import Job


def _told(job: Job) -> tuple[str, tuple[int, ...], str]:
    found = diagnose(job.trace())
    return found.verdict.value, found.culprits, found.confidence.value


def _job(past: int) -> Job:
    """Rank 2 sends to rank 1 in every step; then all reduce."""
    job = Job(3)
    job.steps(2)
    for _ in range(past):
        job.op(2, "send", peer=1)
        job.op(1, "recv", peer=2)
        job.all()
    return job


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("rank_0_goes_on", [True, False])
def test_receive_from_a_rank_never_used_before_is_named(sent: bool, rank_0_goes_on: bool) -> None:
    job = _job(past=3)
    job.op(2, "send", peer=1, done=sent)
    job.op(1, "recv", peer=0, done=False)
    if rank_0_goes_on:
        job.op(0, done=False)
        if sent:
            job.op(2, done=False)
    assert _told(job) == ("p2p_unmatched", (1,), "likely")
    assert (
        "Rank 1 waits for rank 0 while rank 2 has sent to rank 1" in diagnose(job.trace()).summary
    )


@pytest.mark.parametrize("sent", [True, False])
def test_without_history_both_ranks_of_a_wrong_receive_are_named(sent: bool) -> None:
    job = _job(past=0)
    job.op(2, "send", peer=1, done=sent)
    job.op(1, "recv", peer=0, done=False)
    job.op(0, done=False)
    if sent:
        job.op(2, done=False)
    assert _told(job) == ("p2p_unmatched", (0, 1), "ambiguous")


def test_rank_that_served_before_and_does_not_now_is_named() -> None:
    job = _job(past=0)
    for _ in range(3):
        for rank in (0, 2):
            job.op(rank, "send", peer=1)
            job.op(1, "recv", peer=rank)
        job.all()
    job.op(2, "send", peer=1, done=True)
    job.op(1, "recv", peer=0, done=False)
    for rank in (0, 2):
        job.op(rank, done=False)
    assert _told(job)[:2] == ("p2p_unmatched", (0,))


def test_send_to_the_wrong_rank_with_a_waiting_caller_is_named() -> None:
    job = _job(past=3)
    job.op(2, "send", peer=0, done=False, flags=Flag.BLOCKING)
    job.op(1, "recv", peer=2, done=False, flags=Flag.BLOCKING)
    job.op(0, done=False)
    assert _told(job) == ("p2p_unmatched", (2,), "likely")


def test_sleeping_sender_is_missing_although_another_sent_early() -> None:
    """Rank 1 receives from 0, then from 2; in the first round rank 0 never gets there."""
    job = Job(3, live=True)
    job.steps(2)
    job.op(2, "send", peer=1, done=True)
    job.op(2, done=False)
    job.op(1, "recv", peer=0, done=False)
    asleep = (Frame("load", "/home/me/train.py", 7), Frame("<module>", "/home/me/train.py", 1))
    job.rank(0, process_state="sleeping", threads=(ThreadStack("MainThread", True, asleep, 1),))
    assert _told(job)[:2] == ("missing_rank", (0,))


@pytest.mark.parametrize(
    ("flags", "culprits"), [(Flag.ASYNC, (1,)), (Flag.ASYNC | Flag.WAITED, (0,))]
)
def test_receive_posted_early_blocks_no_rank_until_waited_for(
    flags: Flag, culprits: tuple[int, ...]
) -> None:
    """Rank 0 is in the barrier without having sent; rank 1 has posted its receive."""
    job = Job(3)
    job.steps(2)
    job.op(1, "recv", peer=0, done=False, flags=flags)
    job.op(0, done=False)
    job.op(2, done=False)
    assert _told(job)[1] == culprits


def _tree(*, lost: int = -1) -> Job:
    """Children send to their parent; once rank 3 turns to rank 2 instead of rank 1."""
    job = Job(5)
    for _ in range(4):
        for child, parent in ((3, 1), (4, 1), (1, 0), (2, 0)):
            job.op(child, "send", peer=parent, line=100 + child)
            job.op(parent, "recv", peer=child, line=200 + child)
        job.all("broadcast", root=0)
    job.op(3, "send", peer=2, line=103, done=False)
    job.op(1, "recv", peer=3, line=203, done=False)
    job.op(2, "send", peer=0, line=102, done=False)
    job.op(4, "send", peer=1, line=104, done=False)
    job.op(0, "recv", peer=1, line=201, done=False)
    if lost >= 0:
        job.lose(lost)
    return job


def test_rank_that_turns_away_from_its_waiting_partner_breaks_a_cycle() -> None:
    assert _told(_tree()) == ("p2p_unmatched", (3,), "likely")
    assert "Rank 3 sends to rank 2 while rank 1 waits" in diagnose(_tree().trace()).summary


@pytest.mark.parametrize(
    ("past", "told"),
    [
        (0, ("p2p_unmatched", (0, 2), "ambiguous")),
        (3, ("p2p_unmatched", (2,), "likely")),
    ],
)
def test_ring_member_that_receives_from_the_wrong_neighbour_is_named(
    past: int, told: tuple[str, tuple[int, ...], str]
) -> None:
    """Rank 3 also waits for rank 0, but only while rank 0 is blocked: it lacks no send of rank
    0."""
    job = Job(4)
    job.steps(2)
    for step in range(past + 1):
        for rank in range(4):
            source = 0 if (step, rank) == (past, 2) else (rank - 1) % 4
            job.op(rank, "send", peer=(rank + 1) % 4, done=step < past)
            job.op(rank, "recv", peer=source, done=step < past)
    assert _told(job) == told
