"""A missing half between two ranks: the one that did as in every earlier step is not to blame."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Flag
from tests.diagnosis.builder import Job, judged

_HOST = {"flags": Flag.BLOCKING}


def _relay(steps: int, extra_by: int | None) -> Job:
    """Rank 0 sends to rank 1, and that to rank 2, four times a step. Rank 1 at last asks once
    more; or rank 0 (``extra_by`` 0) sends once less."""
    job = Job(3)
    for step in range(steps):
        last = step == steps - 1
        for part in range(4):
            if last and extra_by == 0 and part == 3:
                break
            job.op(0, "send", peer=1, line=10, **_HOST)
            job.op(1, "recv", peer=0, line=11, **_HOST)
            job.op(1, "send", peer=2, line=12, **_HOST)
            job.op(2, "recv", peer=1, line=13, **_HOST)
        if not last:
            job.all(line=20)
    job.op(1, "recv", peer=0, line=11, done=False, **_HOST)
    job.op(0, line=20, done=False)
    if extra_by == 1:
        job.op(2, line=20, done=False)
    else:
        job.op(2, "recv", peer=1, line=13, done=False, **_HOST)
    return job


@pytest.mark.parametrize("odd", [0, 1])
def test_rank_whose_step_differs_from_its_earlier_ones_is_named(odd: int) -> None:
    assert judged(_relay(4, odd).trace())[1:] == ((odd,), Confidence.LIKELY)


def test_without_earlier_steps_the_missing_half_counts() -> None:
    assert judged(_relay(1, 1).trace())[1] == (0,)


def _halo(job: Job, rank: int, peers: tuple[int, ...], *, done: bool = True) -> None:
    """A send and a receive with each neighbour; the first one is waited for first."""
    for peer in peers:
        for op in ("send", "recv"):
            waited = Flag.WAITED if (peer, op) == (peers[0], "send") else Flag(0)
            job.op(rank, op, peer=peer, done=done, line=30, flags=Flag.ASYNC | waited)


@pytest.mark.parametrize("steps", [1, 4])
def test_round_in_which_another_neighbour_took_part_is_not_begun_alone(steps: int) -> None:
    """Rank 2 leaves out what it owes rank 0, which waits there for it alone."""
    job = Job(3)
    for step in range(steps):
        for rank in range(3):
            peers = ((rank + 2) % 3, (rank + 1) % 3)
            last = step == steps - 1
            _halo(job, rank, (1,) if last and rank == 2 else peers, done=not last or rank > 0)
        if step < steps - 1:
            job.all(line=20)
    for rank in (1, 2):
        job.op(rank, line=20, done=False)
    verdict, culprits, confidence = judged(job.trace())
    if steps > 1:
        assert (verdict, culprits) == (Verdict.P2P_UNMATCHED, (2,))
        assert confidence is Confidence.LIKELY
    else:
        assert culprits != (0,)
