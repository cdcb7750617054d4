"""Groups with one backend for the host and one for devices, as created by
``cpu:gloo,cuda:nccl``."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace import formats
from hangscope.trace.model import Flag, Source, Trace
from tests.diagnosis.builder import Job

DEVICE = 64
"""The line from which operations on devices come here."""
UNSEEN = Flag.UNOBSERVED | Flag.ASYNC


def mixed(job: Job) -> Trace:
    """The job as rings tell it, with what comes from the line of the devices on NCCL."""
    trace = job.trace(
        sources=tuple(Source(f"rank_{r}.ring", formats.RING, "3", r) for r in range(job.world))
    )
    records = trace.records.copy()
    lines = [stack[0].line for stack in trace.stacks]
    for row in records:
        if lines[int(row["stack"])] == DEVICE:
            row["signature"] += len(trace.signatures)
    on_device = tuple(replace(s, backend="nccl") for s in trace.signatures)
    return replace(trace, records=records, signatures=trace.signatures + on_device)


def test_one_host_tensor_among_device_tensors_is_a_mismatch() -> None:
    job = Job(4, live=True)
    for _ in range(3):
        job.all(line=DEVICE, done=False, flags=UNSEEN)
    for rank in (0, 2, 3):
        job.op(rank, line=DEVICE, done=False, flags=UNSEEN)
    job.op(1, line=20, done=False)
    diagnosis = diagnose(mixed(job))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.ARGUMENT_MISMATCH, (1,))
    assert diagnosis.confidence is Confidence.CERTAIN
    assert "on gloo while ranks 0, 2, 3 issued all_reduce float32[16] sum on nccl" in (
        diagnosis.summary
    )


def test_completion_on_the_host_shows_nothing_about_the_device() -> None:
    """Rank 0 has reduced on its device, as all have, and does not reach the host's reduction."""
    job = Job(4, live=True)
    for _ in range(3):
        job.all(line=DEVICE, done=False, flags=UNSEEN)
        job.all(line=20)
    job.all(line=DEVICE, done=False, flags=UNSEEN)
    for rank in (1, 2, 3):
        job.op(rank, line=20, done=False)
    diagnosis = diagnose(mixed(job))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISSING_RANK, (0,))
