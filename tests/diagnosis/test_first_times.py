"""Between sides of equal weight, which of them stands where it had never been before."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.trace.model import Frame
from tests.diagnosis.builder import Job


def evaluate(job: Job, rank: int, *, done: bool = True) -> None:
    job.op(rank, size=(2,), line=120, function="evaluate", done=done)


def pair(steps: int, *, evaluated_before: int = 0) -> Diagnosis:
    """Two ranks: rank 1 goes to its evaluation while rank 0 goes on training."""
    job = Job(2)
    for _ in range(evaluated_before):
        for rank in range(2):
            evaluate(job, rank)
    for _ in range(steps):
        for rank in range(2):
            job.op(rank)
    job.op(0, done=False)
    evaluate(job, 1, done=False)
    return diagnose(job.trace())


def lines(found: Diagnosis) -> list[str]:
    return [line for line in found.findings[0].evidence if "never come" in line]


def test_the_side_at_a_new_line_is_told() -> None:
    found = pair(5)
    assert (found.culprits, found.confidence) == ((0, 1), Confidence.AMBIGUOUS)
    assert lines(found) == [
        "rank 1 had never come to train.py:120 in evaluate before; rank 0 had come 5 times or "
        "more to train.py:88 in train"
    ]


def test_nothing_is_told_where_both_have_been_before_or_neither_often() -> None:
    assert not lines(pair(5, evaluated_before=2))
    assert not lines(pair(1))


def test_a_new_way_through_a_library_from_the_same_line_is_none() -> None:
    job = Job(2)
    for _ in range(5):
        for rank in range(2):
            job.op(rank)
    job.op(0, done=False)
    evaluate(job, 1, done=False)
    trace = job.trace()
    first = trace.stacks[0]
    inner = Frame("step", "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 9)
    stacks = [first if stack == first else (inner, *first) for stack in trace.stacks]
    found = diagnose(replace(trace, stacks=tuple(stacks)))
    assert found.confidence is Confidence.AMBIGUOUS
    assert not lines(found)
