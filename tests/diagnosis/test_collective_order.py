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


def test_sequence_numbers_of_another_stage_give_no_order() -> None:
    """The last of three stages also averages its loss, so the same number of its data group is a
    different operation. Rank 0 issues one more operation in its own group."""
    job = Job(6)
    data = [job.group(r, r + 1, desc="DATA") for r in (0, 2, 4)]
    model = [job.group(r, r + 2, r + 4, desc="MODEL") for r in (0, 1)]
    for group in data:
        job.all(group=group, size=(64,), line=10)
    for group in model:
        job.all(group=group, size=(1,), line=20)
    job.all(group=data[2], size=(1,), line=30)
    for group in model:
        job.all("broadcast", group=group, size=(1,), root=4, line=40)
    for group in data:
        job.all(group=group, size=(64,), line=10)
    job.op(0, group=data[0], size=(1,), line=99, done=False)
    for rank in range(6):
        job.op(rank, group=model[rank % 2], size=(1,), line=20, done=rank % 2 == 1)
    job.op(5, group=data[2], size=(1,), line=30, done=False)
    for rank in (1, 3, 5):
        job.op(rank, "broadcast", group=model[1], size=(1,), root=5, line=40, done=False)
    assert judged(job.trace()) == (Verdict.DEADLOCK_CYCLE, (0,), Confidence.LIKELY)


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


def apart_in_a_group(world: int, *, broadcast_first: bool = True) -> Job:
    """Pipelines (0, 1), (2, 3) broadcast, then send. Rank 0 stands in the broadcast, rank 1 waits
    for what it sends. The other pipeline sends as well, behind what rank 2 waits in for rank 0, and
    has broadcast before if ``broadcast_first``. Only unfinished entries are listed."""
    job = Job(world)
    tensor = job.group(0, 2, desc="TENSOR") if world > 2 else 0
    for first in range(0, world, 2):
        pipe = job.group(first, first + 1, desc="PIPE")
        for rank in (first, first + 1):
            job.rank(rank, only_active=True)
            job.p2p[rank, pipe] = 16
            job.seq[rank, pipe] = 2 if first and broadcast_first else 1
        if first == 0:
            job.op(0, "broadcast", group=pipe, root=0, line=20, done=False)
        else:
            job.op(2, group=tensor, line=5, done=False)
            job.op(2, "send", group=pipe, peer=3, line=10, done=False)
        job.op(first + 1, "recv", group=pipe, peer=first, line=10, done=False)
    return job


def test_counterparts_show_whether_a_collective_precedes_a_pair() -> None:
    found = judged(apart_in_a_group(4).trace())
    assert found == (Verdict.DEADLOCK_CYCLE, (1,), Confidence.LIKELY)


def test_counterparts_show_a_skipped_p2p_operation_before_a_collective() -> None:
    found = judged(apart_in_a_group(4, broadcast_first=False).trace())
    assert found == (Verdict.P2P_UNMATCHED, (0,), Confidence.LIKELY)


def test_without_counterparts_either_rank_may_have_skipped() -> None:
    found = judged(apart_in_a_group(2).trace())
    assert found == (Verdict.DEADLOCK_CYCLE, (0, 1), Confidence.AMBIGUOUS)
