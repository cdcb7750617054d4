"""Who in a sibling group runs the same program as a rank, if ranks are placed by hand."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Waits
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.pattern.sibling_groups import counterparts
from hangscope.diagnosis.records.frontier import frontiers

from .builder import Job


def context_of(job: Job) -> Context:
    trace = job.trace()
    return Context(trace, frontiers(trace), {}, Waits([], {}, {}))


def pipelines(job: Job, stages: list[tuple[int, int]], steps: int = 3) -> list[int]:
    """Pipelines of two ranks (first stage, last stage), which run some steps of two batches."""
    groups = [job.group(*sorted(ranks), desc="PIPELINE") for ranks in stages]
    for group, (first, last) in zip(groups, stages, strict=True):
        for _ in range(steps):
            for sender, receiver in ((first, last), (first, last), (last, first), (last, first)):
                job.op(sender, "send", group=group, peer=receiver)
                job.op(receiver, "recv", group=group, peer=sender)
    return groups


def test_counterparts_are_the_ranks_at_the_same_place() -> None:
    job = Job(6)
    groups = pipelines(job, [(0, 1), (2, 3), (4, 5)])
    context = context_of(job)
    assert counterparts(context, 0, groups[0]) == {groups[1]: 2, groups[2]: 4}
    assert counterparts(context, 5, groups[2]) == {groups[0]: 1, groups[1]: 3}
    assert counterparts(context, 4, groups[0]) == {}, "no member"


@pytest.mark.parametrize("fault", ["other", "extra"])
def test_counterparts_include_those_that_a_faulty_rank_deviates_from(fault: str) -> None:
    """One mistake does not make a rank another stage."""
    job = Job(4)
    groups = pipelines(job, [(0, 1), (2, 3)])
    job.op(0, "send" if fault == "extra" else "recv", group=groups[0], peer=1, done=False)
    job.op(2, "send", group=groups[1], peer=3, done=False)
    job.op(0, "send", group=groups[0], peer=1, done=False)
    assert counterparts(context_of(job), 0, groups[0]) == {groups[1]: 2}


def test_lost_rank_beside_a_pipeline_placed_the_other_way_round_is_lost() -> None:
    """Rank 2 does what the last stages elsewhere do. Rank 3, its first stage, left nothing."""
    job = Job(6)
    stages = [(0, 1), (3, 2), (4, 5)]
    groups = [job.group(*sorted(ranks), desc="PIPELINE") for ranks in stages]
    for _ in range(3):
        for group, (first, last) in zip(groups, stages, strict=True):
            # One forward ahead: the stages differ only at the beginning and the end of a step.
            for rank, ops in ((first, "send send recv recv"), (last, "recv send recv send")):
                for op in ops.split():
                    job.op(rank, op, group=group, peer=last if rank == first else first)
        job.all(size=(8,), done=True)
    for rank in (0, 1, 2, 4, 5):
        job.op(rank, size=(8,), done=False)
    job.lose(3)
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (Verdict.RANK_LOST, (3,))
