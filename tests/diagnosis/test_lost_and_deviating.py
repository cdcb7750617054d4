"""One rank left no record, and another deviated from what it did in every step before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import Trace
from tests.diagnosis.builder import Job, judged

_STAGES = range(4)
_LAST = 3


def pipeline(*, left_out: bool) -> Trace:
    """Four stages, two micro-batches forth and back a step; then both ends meet, and then all.

    Every second step is one of evaluation, forward only, from lines of its own: that the end of a
    step comes right behind a receive is nothing new. Rank 1 left no record; ``left_out``: in the
    last step the last stage does not send its second gradient back. Else rank 1 does not come.
    """
    job = Job(4)
    ends = job.group(0, _LAST, desc="EMBEDDING")
    for step in range(4):
        for _ in range(2):
            forward(job, line=50 if step % 2 else 10)
            if step % 2 == 0:
                backward(job)
        job.all(group=ends, line=30)
        job.all(line=31)
    forward(job, line=10)
    backward(job)
    forward(job, line=10)
    if left_out:
        job.op(2, "recv", peer=_LAST, line=21, done=False)
    else:
        back(job, _LAST, _LAST - 1)
        job.op(2, "send", peer=1, line=20, done=False)
    job.op(_LAST, group=ends, line=30, done=False)
    job.op(0, "recv", peer=1, line=21, done=False)
    job.lose(1)
    return job.trace()


def forward(job: Job, *, line: int) -> None:
    for stage in _STAGES[:-1]:
        job.op(stage, "send", peer=stage + 1, line=line)
        job.op(stage + 1, "recv", peer=stage, line=line + 1)


def backward(job: Job) -> None:
    for stage in reversed(_STAGES[1:]):
        back(job, stage, stage - 1)


def back(job: Job, stage: int, to: int) -> None:
    job.op(stage, "send", peer=to, line=20)
    job.op(to, "recv", peer=stage, line=21)


@pytest.mark.parametrize("left_out", [True, False])
def test_deviating_rank_is_named_beside_a_lost_one(left_out: bool) -> None:
    verdict, culprits, confidence = judged(pipeline(left_out=left_out))
    if left_out:
        assert (culprits, confidence) == ((1, _LAST), Confidence.AMBIGUOUS)
    else:
        assert (verdict, culprits, confidence) == (Verdict.RANK_LOST, (1,), Confidence.LIKELY)


@pytest.mark.parametrize("counted", [True, False], ids=["with counters", "without"])
def test_neighbour_whose_dump_lists_nothing_is_not_named_instead(counted: bool) -> None:
    """Dumps that list what is unfinished: rank 3, in a group with the lost one, may be anywhere."""
    job = Job(8)
    data = [job.group(*range(first, 8, 2), desc="DATA") for first in (0, 1)]
    for first in range(2, 8, 2):
        job.group(first, first + 1, desc="TENSOR")
    job.groups[0] = replace(job.groups[0], desc="TENSOR", ranks=(0, 1))
    for rank in (0, 4, 6):
        job.op(rank, group=data[0], done=False)
    for rank in range(8):
        job.rank(rank, only_active=True)
    for rank in (1, 3, 5, 7) if counted else ():
        job.members.append({"rank": rank, "group": data[1], "enqueued": 1, "completed": 1})
    job.lose(2)
    assert judged(job.trace()) == (Verdict.RANK_LOST, (2,), Confidence.LIKELY)
