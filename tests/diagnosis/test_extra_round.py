"""One rank exchanges with a neighbour that has gone on to where all others are: who is wrong?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Trace
from tests.diagnosis.builder import Job, judged


def exchanges(unmet: int, *, only_active: bool = False) -> Trace:
    """Ranks 0 and 1 exchange twice a step, then all four meet.

    At last rank 0 stands in so many (``unmet``) to which rank 1 has not come, and the three others
    where they meet. ``only_active``: what the dumps say that they list.
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
    for rank in range(4):
        job.rank(rank, only_active=only_active)
    return job.trace()


def test_of_too_many_rounds_and_too_few_neither_rank_is_named_alone() -> None:
    """Rank 1 exchanged once in this step, not twice as before, and rank 0 began four rounds."""
    assert judged(exchanges(3)) == (Verdict.DEADLOCK_CYCLE, (0, 1), Confidence.AMBIGUOUS)


def test_operations_of_one_batch_are_no_row() -> None:
    """Torch gives a send and a receive issued by one call the same number. If two calls issue
    them, the past decides: rank 1 exchanged once in this step, not twice as before."""
    trace = exchanges(1)
    *_, send, receive = np.flatnonzero(trace.records["rank"] == 0)
    assert judged(trace)[:2] == (Verdict.P2P_UNMATCHED, (1,))
    trace.records["p2p_seq"][receive] = trace.records["p2p_seq"][send]
    assert judged(trace)[:2] == (Verdict.P2P_UNMATCHED, (1,))


def test_without_their_past_neither_is_named_alone() -> None:
    trace = exchanges(3, only_active=True)
    unfinished = trace.records[trace.records["completed_ns"] == 0]
    assert judged(replace(trace, records=unfinished))[1] == (0, 1)


def test_row_completed_by_all_counterparts_was_skipped_by_the_partner() -> None:
    """Rank 1 runs one micro-batch less, of several exchanges; the other pairs completed all."""
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


def test_rounds_that_one_record_has_lost_are_not_extra() -> None:
    """Rank 1 leaves one receive out; its ring has wrapped, so rank 0 has more calls on record."""
    job = Job(4)
    pair = job.group(0, 1, desc="PIPELINE")
    for step in range(4):
        for number in range(3):
            left_out = (step, number) == (3, 2)
            job.op(0, "send", peer=1, group=pair, done=not left_out)
            if not left_out:
                job.op(1, "recv", peer=0, group=pair)
        job.all(done=step < 3)
    trace = job.trace()
    rows = np.flatnonzero(trace.records["rank"] == 1)
    kept = np.ones(len(trace.records), bool)
    kept[rows[:-5]] = False
    ranks = {**trace.ranks, 1: replace(trace.ranks[1], oldest_record_id=len(rows) - 4)}
    found = judged(replace(trace, records=trace.records[kept], ranks=ranks))
    assert found[1] == (1,) or found[2] is Confidence.AMBIGUOUS
