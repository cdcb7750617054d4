"""Ranks that reached one group without the other, and which side of a tie the report blames."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from tests.diagnosis.builder import Job

STEP = 20
AFTER_THE_LOOP = 30


def _shards_and_all(line: int) -> Diagnosis:
    """Rank 3 comes to a collective of all at ``line`` while its group of shards waits for it."""
    job = Job(4, live=True)
    shards = job.group(2, 3, desc="shards")
    others = job.group(0, 1, desc="shards")
    for _ in range(3):
        for group in (shards, others):
            job.all(group=group, line=STEP - 10)
        job.all(line=STEP)
    for rank in (0, 1):
        job.op(rank, group=others, line=STEP - 10)
    for rank in (0, 1):
        job.op(rank, line=STEP, done=False)
    job.op(2, group=shards, line=STEP - 10, done=False)
    job.op(3, line=line, done=False)
    return diagnose(job.trace())


def test_cycle_is_described_by_what_the_rank_reached_and_skipped() -> None:
    found = _shards_and_all(STEP)
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (3,))
    assert found.summary.startswith(
        "Rank 3 came to all_reduce #4 in group default without all_reduce #4 in group shards"
    )
    assert "skip or postpone all_reduce #4 in group shards" in found.findings[0].fix


def test_rank_after_the_loop_has_left_the_loop() -> None:
    fix = _shards_and_all(AFTER_THE_LOOP).findings[0].fix
    assert "if it comes after a loop, rank 3 left that loop early" in fix
    assert fix.startswith("compare train.py:30 in train with train.py:10 in train; ")


@pytest.mark.parametrize("wrong", [2, 3])
def test_of_two_orders_the_new_one_is_likely_wrong(wrong: int) -> None:
    """All steps of a rank reach the other one in both groups, with nothing in between."""
    job = Job(6, live=True)
    first = job.group(0, 1, 2, 3, desc="grads")
    second = job.group(2, 3, 4, 5, desc="experts")
    for _ in range(4):
        job.all(group=first)
        job.all(group=second)
    for rank in (0, 1, 5 - wrong):
        job.op(rank, group=first, done=False)
    for rank in (4, 5, wrong):
        job.op(rank, group=second, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (wrong,))
    assert found.confidence.value == "likely"


def test_summary_blames_the_side_that_siblings_contradict() -> None:
    """Rank 0 is the first of two; the other pairs did what rank 1 does."""
    job = Job(4, live=True)
    pairs = [job.group(0, 1, desc="dp"), job.group(2, 3, desc="dp")]
    for _ in range(3):
        for group in pairs:
            job.all(group=group, line=STEP)
    job.op(0, group=pairs[0], size=(1,), line=AFTER_THE_LOOP, done=False)
    job.op(1, group=pairs[0], line=STEP, done=False)
    job.all(group=pairs[1], line=STEP)
    found = diagnose(job.trace())
    assert (found.culprits, found.confidence.value) == ((0,), "likely")
    told = found.findings[0]
    assert told.summary.index("rank 0 issued") < told.summary.index("while rank 1 issued")
    assert "rank 1" not in told.fix
    assert told.sides[-1].ranks == (0,)
