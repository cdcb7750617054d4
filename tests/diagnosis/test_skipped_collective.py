"""Cycles closed by a rank that skipped a collective: which rank deviated?"""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Flag

from .builder import Job


def pairs_and_all(world: int, steps: int, *, desc: str = "") -> tuple[Job, list[int]]:
    """Steps of two operations: one of each pair of neighbours, then one of everybody."""
    job = Job(world)
    pairs = [job.group(r, r + 1, desc=desc) for r in range(0, world, 2)]
    for _ in range(steps):
        for pair in pairs:
            job.all(group=pair, line=10)
        job.all(line=20, size=(1,))
    return job, pairs


def last_step(job: Job, pairs: list[int], without: int) -> None:
    """The last step: ``without`` leaves its pair's operation out; hosts run ahead of devices."""
    for rank in range(job.world):
        partner = rank ^ 1
        if rank != without:
            job.op(rank, group=pairs[rank // 2], line=10, done=partner != without)
        job.op(rank, line=20, size=(1,), done=False)


def test_skipped_collective_is_found_by_the_ranks_own_history() -> None:
    job, pairs = pairs_and_all(2, 8)
    last_step(job, pairs, without=1)
    diagnosis = diagnose(job.trace())
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.DEADLOCK_CYCLE, (1,))
    assert diagnosis.confidence is Confidence.LIKELY


def test_operation_new_to_all_at_once_is_no_deviation() -> None:
    """A first checkpoint, which all completed, shows nothing about the step they hang in."""
    job, pairs = pairs_and_all(4, 8)
    job.all("all_gather", line=30)
    job.all(line=20, size=(1,))
    last_step(job, pairs, without=1)
    assert diagnose(job.trace()).culprits == (1,)


def test_groups_without_a_description_have_siblings_too() -> None:
    """The relative position of its members and its use show a group's dimension."""
    job, pairs = pairs_and_all(4, 2)
    last_step(job, pairs, without=1)
    assert diagnose(job.trace()).culprits == (1,)


def test_sibling_groups_are_compared_in_order_of_issue() -> None:
    """Sequence numbers of two groups show no order: one may count much faster."""
    job, pairs = pairs_and_all(4, 3, desc="tensor")
    halves = [job.group(0, 2, desc="data"), job.group(1, 3, desc="data")]
    for _ in range(30):
        for half in halves:
            job.all(group=half, line=40)
    last_step(job, pairs, without=1)
    assert diagnose(job.trace()).culprits == (1,)


def test_rank_without_a_dump_does_not_hide_a_cycle_of_others() -> None:
    """Every member of a group waits for the lost rank, too; those blocked by an older operation do
    not wait there first."""
    job, pairs = pairs_and_all(8, 8)
    last_step(job, pairs, without=1)
    job.lose(7)
    diagnosis = diagnose(job.trace())
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.DEADLOCK_CYCLE, (1,))


def test_too_short_history_names_both() -> None:
    job, pairs = pairs_and_all(2, 2)
    last_step(job, pairs, without=1)
    diagnosis = diagnose(job.trace())
    assert set(diagnosis.culprits) == {0, 1}
    assert diagnosis.confidence is Confidence.AMBIGUOUS


def test_rank_that_proceeded_alone_is_named_despite_pairs_in_the_cycle() -> None:
    """Rank 2 skips the evaluation: its neighbour's send has no partner, and no other rank has
    reached the collective that rank 2 waits in."""
    job, pairs = pairs_and_all(4, 8)
    pipe = [job.group(0, 2, desc="pipe"), job.group(1, 3, desc="pipe")]
    for _ in range(4):
        for low, group in enumerate(pipe):
            job.op(low, "send", group=group, peer=low + 2)
            job.op(low + 2, "recv", group=group, peer=low)
    job.op(0, "send", group=pipe[0], peer=2, done=False, flags=Flag.WAITED)
    job.op(1, "send", group=pipe[1], peer=3)
    job.op(3, "recv", group=pipe[1], peer=1)
    job.op(1, group=pairs[0], done=False)
    job.op(3, group=pairs[1], done=False)
    job.op(2, "all_gather", done=False)
    diagnosis = diagnose(job.trace())
    assert diagnosis.culprits == (2,)


def test_pipeline_none_of_whose_ranks_runs_the_last_step_is_undecided() -> None:
    """None of ranks 0 to 3 does what its counterpart among 4 to 7 did: 0 does not send and 3 does
    not receive, and 1 and 2 receive from others than before."""
    job = Job(8)
    pipes = [job.group(*range(first, first + 4), desc="pipe") for first in (0, 4)]

    def through(first: int, pipe: int) -> None:
        for rank in range(first, first + 3):
            job.op(rank, "send", group=pipe, peer=rank + 1, line=10)
            job.op(rank + 1, "recv", group=pipe, peer=rank, line=12)

    for _ in range(4):
        for first, pipe in zip((0, 4), pipes, strict=True):
            through(first, pipe)
            job.all(group=pipe, line=20)
        job.all(line=30)
    through(4, pipes[1])
    job.all(group=pipes[1], line=20)
    for rank in range(4, 8):
        job.op(rank, line=30, done=False)
    for rank in (0, 3):
        job.op(rank, group=pipes[0], line=20, done=False)
    for rank, peers in ((1, (3, 0)), (2, (1,))):
        if rank == 2:
            job.op(rank, "send", group=pipes[0], peer=3, line=16)
        for peer in peers:
            job.op(rank, "recv", group=pipes[0], peer=peer, line=14, done=False)
    diagnosis = diagnose(job.trace())
    assert set(diagnosis.culprits) <= {0, 1, 2, 3}
    assert len(diagnosis.culprits) > 1
    assert diagnosis.confidence is Confidence.AMBIGUOUS


@pytest.mark.parametrize("lost", [(), (0, 1)])
def test_rank_without_a_dump_that_may_wait_with_the_suspect_is_undecided(
    lost: tuple[int, ...],
) -> None:
    """Ranks 0, 1 and 3 begin their first evaluation, and rank 2 trains on."""
    job = Job(4)
    half = job.group(0, 1, 2, 3, desc="experts")
    for _ in range(8):
        job.all("all_to_all", group=half, line=10)
        job.all(group=half, line=20)
    for rank in (0, 1, 3):
        job.op(rank, "all_gather", line=30, done=False)
    job.op(2, "all_to_all", group=half, line=10, done=False)
    job.lose(*lost)
    found = diagnose(job.trace())
    assert found.culprits == ((2, 3) if lost else (2,))
    assert (found.confidence is Confidence.AMBIGUOUS) == bool(lost)


def _ends_of_pipelines(order: dict[int, tuple[int, int]]) -> Job:
    """Eight ranks: rank ``r`` and ``r + 4`` share an embedding, all of one parity a model group.

    All go to the embedding's gradients and then to the model's norm, but those in ``order``; hosts
    run ahead of devices. It is the first step.
    """
    job = Job(8)
    ends = [job.group(r, r + 4, desc="EMBEDDING_GROUP") for r in range(4)]
    norms = [job.group(*range(parity, 8, 2), desc="MODEL_PARALLEL_GROUP") for parity in (0, 1)]
    odd = set(order) | {r ^ 4 for r in order}
    for rank in range(8):
        stuck = any(r % 2 == rank % 2 for r in order)
        usual = ((ends[rank % 4], 64), (norms[rank % 2], 1))
        first, second = order.get(rank, (0, 1))
        for place in (first, second):
            group, size = usual[place]
            done = not stuck or (place == 0 and rank not in odd)
            job.op(rank, group=group, size=(size,), line=40 + place, done=done)
    return job


def test_usual_order_of_two_kinds_of_groups_shows_who_reversed_it() -> None:
    """Both are new to all ranks, and the one waits with many others."""
    found = diagnose(_ends_of_pipelines({7: (1, 0)}).trace())
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (7,))
    assert found.confidence is Confidence.LIKELY


def test_first_operation_of_a_group_uses_the_history_of_its_siblings() -> None:
    job = Job(6)
    pairs = [job.group(r, r + 1, desc="tensor") for r in range(0, 6, 2)]
    for rank in range(6):
        job.op(
            rank, group=pairs[rank // 2], size=(7 if rank == 3 else 64,), done=rank not in (2, 3)
        )
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (Verdict.SHAPE_MISMATCH, (3,))
    assert found.confidence is Confidence.LIKELY


def test_halves_with_one_missing_dump_are_halves() -> None:
    job = Job(16)
    job.steps(3)
    for rank in range(16):
        job.op(rank, size=(7 if rank < 8 else 64,), done=False)
    job.lose(2)
    found = diagnose(job.trace())
    assert (found.verdict, found.confidence) == (Verdict.SHAPE_MISMATCH, Confidence.AMBIGUOUS)
    assert found.culprits == tuple(r for r in range(16) if r != 2)


def test_receivers_only_wait_for_ranks_that_made_the_same_mistake() -> None:
    """Ranks 5 and 7 skip a send and proceed to the next receive; 1 and 3 wait for that send."""
    job = Job(8)
    pairs = [job.group(rank, rank + 4, desc="pp") for rank in range(4)]
    for step in range(4):
        last = step == 3
        for rank, group in enumerate(pairs):
            left_out = last and rank in (1, 3)
            job.op(rank, "send", group=group, peer=rank + 4)
            job.op(rank + 4, "recv", group=group, peer=rank)
            if not left_out:
                job.op(rank + 4, "send", group=group, peer=rank)
            job.op(rank, "recv", group=group, peer=rank + 4, done=not left_out)
            if left_out:
                job.op(rank + 4, "recv", group=group, peer=rank, done=False)
        for rank in range(8):
            if not last or rank not in (1, 3):
                job.op(rank, done=not last)
    found = diagnose(job.trace())
    assert (found.culprits, found.confidence) == ((5, 7), Confidence.LIKELY)
