"""Cycles side by side in sibling groups: a whole row of ranks did the same, not a single one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import NONE, Trace
from tests.diagnosis.builder import Job

LIKELY, AMBIGUOUS = Confidence.LIKELY, Confidence.AMBIGUOUS


def pipelines(lanes: int, steps: int) -> Job:
    """Pipelines of three stages: two micro-batches a step, of which the last stages ask a third.

    Rank ``stage * lanes + lane`` is a stage of a pipeline. Each step ends with a norm over the
    stages of each; the last stages stand in one receive more when the others have come to it.
    """
    job = Job(3 * lanes)
    groups = [job.group(i, i + lanes, i + 2 * lanes, desc="PIPELINE") for i in range(lanes)]
    norms = [job.group(i, i + lanes, i + 2 * lanes, desc="MODEL") for i in range(lanes)]
    for step in range(steps + 1):
        for lane in range(lanes):
            first, second, last = job.groups[groups[lane]].ranks
            for _ in range(2):
                for sender, receiver in ((first, second), (second, last)):
                    job.op(sender, "send", peer=receiver, group=groups[lane], line=10)
                    job.op(receiver, "recv", peer=sender, group=groups[lane], line=20)
            if step < steps:
                job.all(group=norms[lane], line=30)
                continue
            for rank in (first, second):
                job.op(rank, group=norms[lane], line=30, done=False)
            job.op(last, "recv", peer=second, group=groups[lane], line=20, done=False)
    return job


def answers(trace: Trace) -> set[tuple[tuple[int, ...], Confidence]]:
    return {(finding.culprits, finding.confidence) for finding in diagnose(trace).findings}


def without_lines(job: Job) -> Trace:
    for row in job.rows:
        row["stack"] = NONE
    return job.trace()


def test_rank_that_proceeded_is_not_named_alone_if_its_partner_did_something_new() -> None:
    (found,) = diagnose(without_lines(pipelines(1, 2))).findings
    assert (found.culprits, found.confidence) == ((1, 2), AMBIGUOUS)


def test_row_doing_the_same_leaves_both_ends_suspect() -> None:
    """The last stages began one more, or those before skipped one: the graph decides neither."""
    assert answers(without_lines(pipelines(2, 2))) == {((2, 3, 4, 5), AMBIGUOUS)}


def test_equally_suspect_rank_is_no_measure() -> None:
    """Both ranks of a tensor group skip a reduce; six other replicas' ranks did not. ``odd``: the
    rank that skips it. Its record shows that the other did the same."""
    for odd in ((2, 3), ()):
        job = Job(8)
        data = [job.group(*range(lane, 8, 2), desc="DATA") for lane in (0, 1)]
        expert = [job.group(i, i + 4, desc="EXPERT") for i in range(4)]
        for _ in range(2):
            for group in (*data, *data, *expert, 0):
                job.all(group=group)
        for group in data:
            job.all(group=group)
        for rank in range(8):
            if rank not in odd:
                job.op(rank, group=data[rank % 2], done=False)
            job.op(rank, group=expert[rank % 4], done=False)
            job.op(rank, done=False)
        for row in job.rows:
            row["stack"] = NONE
        named = (odd, LIKELY) if odd else ((), Confidence.CERTAIN)
        assert answers(job.trace()) == {named}


def test_cycle_of_receives_without_lines_may_be_one_mistake() -> None:
    """If they wait at one line, the code of all is wrong; nothing shows that they do."""
    job = Job(4)
    job.steps(2)
    for rank in range(4):
        job.op(rank, "recv", peer=(rank - 1) % 4, done=False)
    assert answers(job.trace()) == {((0, 1, 2, 3), Confidence.CERTAIN)}
    assert answers(without_lines(job)) == {((0, 1, 2, 3), AMBIGUOUS)}


@pytest.mark.parametrize("last_two", [(2, 3), (3, 2)], ids=["same places", "other places"])
def test_circle_of_receives_is_not_blamed_on_the_one_rank_that_can_be_compared(
    last_two: tuple[int, int],
) -> None:
    """Four stages receive from each other in a circle that only the first pipeline knows.

    If the last two stages have other places elsewhere, only the first stage has a counterpart.
    """
    job = Job(12)
    pipelines = [(0, 1, 2, 3), *((a, a + 1, a + last_two[0], a + last_two[1]) for a in (4, 8))]
    groups = [job.group(*sorted(ranks), desc="PIPELINE") for ranks in pipelines]
    for step in range(5):
        for group, ranks in list(zip(groups, pipelines, strict=True))[step == 4 :]:
            for stage, (sender, receiver) in enumerate(pairwise(ranks)):
                for _ in range(2):
                    job.op(sender, "send", group=group, peer=receiver, line=20 + stage)
                    job.op(receiver, "recv", group=group, peer=sender, line=30 + stage)
        if step < 4:
            job.steps(1)
    for rank in range(4):
        # One line, but for the first: it is not plain that the code of all is wrong.
        line = 16 if rank == 0 else 15
        job.op(rank, "recv", group=groups[0], peer=(rank - 1) % 4, size=(9,), line=line, done=False)
    for rank in range(4, 12):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert found.verdict is Verdict.DEADLOCK_CYCLE
    assert (found.culprits, found.confidence) == ((0, 1, 2, 3), AMBIGUOUS)


@pytest.mark.parametrize("shift", [0, 1], ids=["lanes", "other lanes"])
def test_circle_of_receives_is_not_blamed_on_the_one_rank_with_a_lane_of_its_own(
    shift: int,
) -> None:
    """Members of a tensor group receive from each other and go on; their device does not.

    Progress is compared at collectives of shared data groups. With other lanes, only the first
    members share one.
    """
    job = Job(12)
    tensor = [job.group(*range(first, first + 4), desc="TENSOR") for first in (0, 4, 8)]
    lanes = [(0, 4, 8)]
    for lane in range(3):
        others = (lane + shift) % 3, (lane + 2 * shift) % 3
        lanes.append((1 + lane, 5 + others[0], 9 + others[1]))
    data = [job.group(*ranks, desc="DATA") for ranks in lanes]
    for step in range(5):
        last = step == 4
        for rank in range(4) if last else ():
            peer, line = (rank - 1) % 4, 16 if rank == 0 else 15
            job.op(rank, "recv", group=tensor[0], peer=peer, size=(9,), line=line, done=False)
        for group in tensor:
            job.all(group=group, done=not last or group != tensor[0])
        for group in data:
            job.all(group=group, done=not last)
    found = diagnose(job.trace())
    assert found.verdict is Verdict.DEADLOCK_CYCLE
    assert found.culprits == (0, 1, 2, 3)
