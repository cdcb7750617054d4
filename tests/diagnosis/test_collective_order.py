"""Ranks that reach two collectives in a different order than others running the same program."""

from __future__ import annotations

from hangscope.diagnosis.model import Confidence, Verdict

from .builder import Job, judged


def weights_before_the_step() -> Job:
    """Trainers (0-3) gather the weights, which rank 0 sends to workers (4, 5), before all meet
    again. Rank 1 comes to the meeting first. Older records of all of them are overwritten."""
    job = Job(6)
    trainers = job.group(0, 1, 2, 3, desc="TRAINERS")
    weights = job.group(0, 4, 5, desc="WEIGHTS")
    for group in (0, trainers, weights):
        job.all(group=group)
    for rank, groups in {
        0: (trainers, weights),
        1: (0, trainers),
        2: (trainers, 0),
        3: (trainers, 0),
        4: (weights,),
        5: (weights,),
    }.items():
        job.rank(rank, oldest_record_id=9)
        for group in groups:
            job.op(rank, group=group, done=False)
    return job


def test_replicas_with_steps_of_different_length_give_no_order() -> None:
    """Each of three replicas has as many micro-batches in a step as its data require. Rank 0 skips
    the only call of its replica: at that number the others began their next step, but rank 0 had
    never begun two steps in a row."""
    job = Job(6)
    shards = [job.group(r, r + 1, desc="SHARD") for r in (0, 2, 4)]
    for lengths in ((4, 2, 2), (3, 2, 2)):
        for shard, length in zip(shards, lengths, strict=True):
            for _ in range(length):
                job.all(group=shard)
        job.all(size=(1,))
    for shard in shards[1:]:
        job.all(group=shard)
    job.op(1, group=shards[0], done=False)
    for rank in range(6):
        job.op(rank, size=(1,), done=False)
    assert judged(job.trace()) == (Verdict.DEADLOCK_CYCLE, (0,), Confidence.LIKELY)
