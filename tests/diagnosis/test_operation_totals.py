"""What a rank had issued in all, compared with its counterparts in sibling groups."""

from __future__ import annotations

from hangscope.diagnosis.pattern.operation_totals import outliers_by_total

from .builder import Job
from .test_sibling_groups import context_of

PIPELINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8))
FEW, MANY = 2, 4


def odd_ones(many: set[int], gone_on: set[int]) -> tuple[int, ...]:
    """Who is odd among ranks 0, 1 and 2, which wait for each other's sends after an all-reduce.

    Before it, the ranks ``many`` exchanged more than the others. ``gone_on``: ranks of the other
    pipelines that are in the next all-reduce.
    """
    job = Job(9)
    groups = [job.group(*ranks, desc="PIPELINE") for ranks in PIPELINES]
    for group, ranks in zip(groups, PIPELINES, strict=True):
        for place, rank in enumerate(ranks):
            for _ in range(MANY if rank in many else FEW):
                job.op(rank, "send", group=group, peer=ranks[place - 1])
    job.steps(1)
    for place, rank in enumerate(PIPELINES[0]):
        job.op(rank, "recv", group=groups[0], peer=PIPELINES[0][place - 1], done=False)
    for rank in sorted(gone_on):
        job.op(rank, done=False)
    return outliers_by_total(context_of(job), PIPELINES[0], groups)


def test_rank_that_exchanged_more_than_its_counterparts_is_odd_if_another_did_as_usual() -> None:
    assert odd_ones({0}, set()) == (0,)


def test_without_another_that_did_as_usual_the_counterparts_may_be_another_stage() -> None:
    """Of the first pipeline only rank 0 can be compared: places need not mean stages."""
    assert odd_ones({0, 4, 7}, {4, 5, 7, 8}) == ()
