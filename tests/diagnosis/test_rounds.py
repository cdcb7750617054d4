"""One rank exchanges with a neighbour that has gone on to where all others are: who is wrong?"""

from __future__ import annotations

import numpy as np
import pytest

from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Trace
from tests.diagnosis.builder import Job, judged


def exchanges(unmet: int, *, oldest: int = 1) -> Trace:
    """Ranks 0 and 1 exchange twice a step, then all four meet.

    At last rank 0 stands in so many (``unmet``) to which rank 1 has not come, and the three others
    where they meet. ``oldest``: number of the first record that is left of rank 0.
    """
    job = Job(4)
    ring = job.group(0, 1, desc="CONTEXT")
    for step in range(3):
        rounds(job, ring, 2 if step < 2 else 1, (0, 1))
        if step < 2:
            job.all()
    rounds(job, ring, unmet, (0,), done=False)
    for rank in (1, 2, 3):
        job.op(rank, done=False)
    job.rank(0, oldest_record_id=oldest)
    return job.trace()


def test_a_whole_row_of_rounds_was_begun_alone() -> None:
    assert judged(exchanges(3)) == (Verdict.DEADLOCK_CYCLE, (0,), Confidence.LIKELY)


def test_what_one_batch_exchanges_is_no_row() -> None:
    """Torch numbers a send and a receive that one call issues alike."""
    trace = exchanges(1)
    *_, send, receive = np.flatnonzero(trace.records["rank"] == 0)
    assert judged(trace)[:2] == (Verdict.DEADLOCK_CYCLE, (0,))
    trace.records["p2p_seq"][receive] = trace.records["p2p_seq"][send]
    assert judged(trace)[:2] == (Verdict.P2P_UNMATCHED, (1,))


@pytest.mark.parametrize("oldest", [1, 5])
def test_rounds_are_counted_only_where_all_are_on_record(oldest: int) -> None:
    named = judged(exchanges(3, oldest=oldest))[1]
    assert (named == (0,)) is (oldest == 1)


def test_a_row_that_all_counterparts_have_been_through_was_left_out_by_the_partner() -> None:
    """Rank 1 runs one micro-batch less, of several exchanges; the other pairs have had them all."""
    job = Job(6)
    rings = [job.group(i, i + 1, desc="CONTEXT") for i in (0, 2, 4)]
    for _ in range(2):
        for ring in rings:
            rounds(job, ring, 4, job.groups[ring].ranks)
        job.all()
    for ring in rings:
        rounds(job, ring, 2, job.groups[ring].ranks)
    for ring in rings[1:]:
        rounds(job, ring, 2, job.groups[ring].ranks)
    rounds(job, rings[0], 2, (0,), done=False)
    for rank in range(1, 6):
        job.op(rank, done=False)
    assert judged(job.trace())[1] == (1,)


def rounds(job: Job, group: int, count: int, ranks: tuple[int, ...], *, done: bool = True) -> None:
    """So many sends and receives of these members with the other one."""
    for _ in range(count):
        for rank in ranks:
            (other,) = {*job.groups[group].ranks} - {rank}
            for op in ("send", "recv"):
                job.op(rank, op, peer=other, group=group, done=done)
