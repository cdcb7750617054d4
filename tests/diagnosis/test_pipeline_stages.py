"""Pipelines whose stages disagree on the number of micro-batches in the first step."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import Flag
from tests.diagnosis.builder import Job

FORWARD_IN, FORWARD_OUT, BACKWARD_IN, BACKWARD_OUT = 13, 15, 21, 23


def _half(job: Job, rank: int, op: str, peer: int, line: int, *, done: bool = True) -> None:
    job.op(rank, op, peer=peer, line=line, done=done, flags=Flag.BLOCKING)


def _more(world: int, batches: int = 4) -> Diagnosis:
    """All forward passes are over, and the stage before the last waits for one more."""
    job = Job(world)
    job.steps(2)
    odd = world - 2
    for _ in range(batches):
        for rank in range(world):
            if rank > 0:
                _half(job, rank, "recv", rank - 1, FORWARD_IN)
            if rank < world - 1:
                _half(job, rank, "send", rank + 1, FORWARD_OUT)
    _half(job, odd, "recv", odd - 1, FORWARD_IN, done=False)
    _half(job, world - 1, "send", odd, BACKWARD_OUT, done=False)
    for rank in range(odd):
        _half(job, rank, "recv", rank + 1, BACKWARD_IN, done=False)
    return diagnose(job.trace())


def _fewer(world: int, odd: int, batches: int = 4) -> Diagnosis:
    """``odd`` turns to its backward pass one micro-batch before all others; they block in sends."""
    job = Job(world)
    job.steps(2)
    for batch in range(batches):
        for rank in range(world):
            missed = batch == batches - 1 and odd in (rank, rank - 1)
            if rank > 0 and not (batch == batches - 1 and rank == odd):
                _half(job, rank, "recv", rank - 1, FORWARD_IN, done=not missed)
            if missed:
                continue
            if rank < world - 1:
                waits = batch == batches - 1 and rank + 1 == odd
                _half(job, rank, "send", rank + 1, FORWARD_OUT, done=not waits)
    _half(job, odd, "recv", odd + 1, BACKWARD_IN, done=False)
    for rank in range(world - 1):
        if rank + 1 < odd:
            _half(job, rank, "recv", rank + 1, BACKWARD_IN, done=False)
    return diagnose(job.trace())


def test_without_siblings_nothing_is_certain() -> None:
    """Of three stages only one other has left the forward pass that both of the two know."""
    found = _more(3)
    assert found.confidence.value == "ambiguous"
    assert found.culprits == (0, 1)


def test_stages_with_different_warmup_counts_show_nothing() -> None:
    """1F1B: each stage leaves the forward pass after another number of micro-batches."""
    job = Job(4)
    job.steps(2)
    for rank, times in ((1, 3), (2, 2), (3, 1)):
        for _ in range(times):
            _half(job, rank - 1, "send", rank, FORWARD_OUT)
            _half(job, rank, "recv", rank - 1, FORWARD_IN)
    _half(job, 3, "send", 2, BACKWARD_OUT)
    _half(job, 2, "recv", 3, BACKWARD_IN)
    _half(job, 2, "recv", 1, FORWARD_IN, done=False)
    _half(job, 1, "recv", 2, BACKWARD_IN, done=False)
    found = diagnose(job.trace())
    assert found.culprits == (1, 2)
    assert found.confidence.value == "ambiguous"
