"""Receives from any source: who owes the send, and how they affect other pairs."""

from __future__ import annotations

from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Flag, Group, Source, State

from .builder import Job


def collecting(**how: Any) -> Job:
    """Rank 0 has received two rounds of results and waits for the third rank's third one."""
    job = Job(4)
    for _ in range(2):
        for rank in (1, 2, 3):
            job.op(rank, "send", peer=0)
        for _ in range(3):
            job.op(0, "recv", **how)
        job.all()
    for rank in (1, 2):
        job.op(rank, "send", peer=0)
    job.op(0, "recv", **how)
    job.op(0, "recv", **how)
    job.op(0, "recv", done=False, **how)
    return job


def test_rank_with_fewer_sends_is_missing() -> None:
    job = collecting()
    for rank in (1, 2):
        job.op(rank, done=False)
    (finding,) = diagnose(job.trace()).findings
    assert finding.culprits == (3,)
    assert finding.verdict in (Verdict.P2P_UNMATCHED, Verdict.MISSING_RANK)


def test_send_counts_alone_are_never_certain() -> None:
    (finding,) = diagnose(collecting().trace()).findings
    assert finding.culprits == (3,)
    assert finding.confidence is Confidence.LIKELY
    assert any("does not say whom" in text for text in finding.unknowns)


def test_equal_send_counts_name_no_rank() -> None:
    job = collecting()
    job.op(3, "send", peer=0)
    job.rows = [r for r in job.rows if r["rank"] != 3 or r["peer"] != 0 or r["p2p_seq"] < 3]
    for rank in (1, 2):  # the two others have been served one round less
        job.rows = [r for r in job.rows if r["rank"] != rank or r["peer"] != 0 or r["p2p_seq"] < 3]
    found = diagnose(job.trace())
    assert found.verdict is Verdict.INCONCLUSIVE
    assert not found.culprits


def test_sender_without_a_dump_is_lost() -> None:
    job = collecting()
    for rank in (1, 2):
        job.op(rank, done=False)
    job.lose(3)
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (Verdict.RANK_LOST, (3,))


def test_unlisted_rank_may_be_the_sender() -> None:
    """The oldest dumps do not show that rank 3 existed, so rank 0 is not accused."""
    job = collecting()
    for rank in (1, 2):
        job.op(rank, done=False)
    job.lose(3)
    job.groups = [Group("0")]
    dumps = tuple(Source(f"{r}", "flight-recorder-pickle", "none", r, 9) for r in range(3))
    found = diagnose(job.trace(sources=dumps, world_size=None))
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())


def test_sends_taken_by_any_source_do_not_match_a_named_receive() -> None:
    """All wait for their neighbour; rank 0 has received earlier sends of rank 1 from any source."""
    job = Job(4)
    for rank in (1, 2, 3):
        job.op(rank, "send", peer=0, size=(64,))
    for _ in range(3):
        job.op(0, "recv", size=(64,))
    for rank in range(4):
        job.op(rank, "recv", peer=(rank + 1) % 4, size=(9,), done=False)
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (0, 1, 2, 3))


def test_matched_operation_waits_behind_an_unmatched_batch() -> None:
    """A ring exchange in batches: rank 2 is absent, rank 0 has both its partners."""
    job = Job(4)
    for rank in (0, 1, 3):
        for op, peer in (("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)):
            job.op(rank, op, peer=peer, done=False, flags=Flag.COALESCED_MEMBER)
        job.op(rank, "coalesced", done=False, flags=Flag.COALESCED_BATCH)
    found = diagnose(job.trace())
    assert found.culprits == (2,)
    assert found.verdict in (Verdict.P2P_UNMATCHED, Verdict.MISSING_RANK)
    assert len(found.findings) == 1


def test_completed_sends_that_are_not_listed_are_counted() -> None:
    job = collecting()
    for rank in (1, 2):
        job.op(rank, done=False)
    job.op(3, done=False)
    job.rows = [r for r in job.rows if r["state"] != 2]  # unfinished operations only
    for row in job.rows:  # every entry carries both counters
        row["p2p_seq"] = {0: 9, 1: 3, 2: 3, 3: 2}[row["rank"]]
    for rank in range(4):
        job.rank(rank, only_active=True)
    found = diagnose(job.trace())
    assert found.culprits == (3,)
    assert found.confidence is not Confidence.CERTAIN


@pytest.mark.parametrize(("behind", "named"), [((3,), (3,)), ((2, 3), ())])
def test_counters_name_a_single_sender_at_most(
    behind: tuple[int, ...], named: tuple[int, ...]
) -> None:
    """Only unfinished entries are listed: several that sent less may run another program."""
    job = Job(4)
    for rank in (1, 2, 3):
        for _ in range(2 if rank in behind else 3):
            job.op(rank, "send", peer=0)
    for _ in range(9 - len(behind)):
        job.op(0, "recv")
    job.op(0, "recv", done=False)
    for rank in (1, 2, 3):
        job.op(rank, done=False)
    for rank in range(4):
        job.rank(rank, only_active=True, oldest_record_id=9)
    job.rows = [row for row in job.rows if row["state"] != State.COMPLETED]
    found = diagnose(job.trace())
    assert found.culprits == named
    assert found.confidence is (Confidence.LIKELY if named else Confidence.AMBIGUOUS)


def serving(*waiting: int) -> Job:
    """Rank 0 takes a gradient of each other rank, from any, and sends weights to each in turn; in
    the last round rank 3 sends none. ``waiting``: who waits for the weights."""
    job = Job(4)
    for step in range(4):
        last = step == 3
        for rank in (1, 2, 3):
            if not (last and rank == 3):
                job.op(rank, "send", peer=0, flags=Flag.BLOCKING)
            if not last or rank in waiting:
                job.op(rank, "recv", peer=0, done=not last, flags=Flag.BLOCKING)
        for count in range(3):
            job.op(0, "recv", done=not (last and count == 2), flags=Flag.BLOCKING)
        for rank in (1, 2, 3):
            if not last:
                job.op(0, "send", peer=rank, flags=Flag.BLOCKING)
    return job


def test_circle_is_closed_if_nobody_else_can_send_to_any() -> None:
    found = diagnose(serving(1, 2, 3).trace())
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (0, 3))
    assert found.confidence is Confidence.AMBIGUOUS


def test_rank_in_its_own_code_may_still_send_to_any() -> None:
    found = diagnose(serving(1, 3).trace())
    assert found.verdict is Verdict.INCONCLUSIVE
