"""What members issue together must agree, and what may differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from tests.diagnosis.builder import Job, blame


@pytest.mark.parametrize(
    ("how", "verdict", "aspect"),
    [
        ({"op": "broadcast", "root": 0}, "collective_mismatch", "op"),
        ({"size": (8,)}, "shape_mismatch", "element counts"),
        ({"dtype": "Half"}, "dtype_mismatch", "dtypes"),
        ({"reduce_op": "MAX"}, "argument_mismatch", "reduce"),
    ],
)
def test_difference_in_what_must_agree_is_named(
    how: dict[str, Any], verdict: str, aspect: str
) -> None:
    job = Job(4, live=True)
    job.steps(3)
    for rank in (1, 2, 3):
        job.op(rank, done=False)
    job.op(0, done=False, **how)
    found = diagnose(job.trace(after_s=0.5))
    assert blame(found) == (verdict, (0,))
    assert found.findings[0].seq == 4
    assert aspect in found.findings[0].why


def test_reduce_op_known_on_one_side_only_is_no_difference() -> None:
    job = Job(4)
    job.steps(3)
    for rank in range(4):
        job.op(rank, size=(8 if rank == 1 else 16,), reduce_op=None if rank == 1 else "SUM")
    told = diagnose(job.trace()).summary
    assert "rank 1 issued all_reduce float32[8]" in told
    assert "issued all_reduce float32[16]" in told
    assert "sum" not in told.lower()


@pytest.mark.parametrize(("absent", "confidence"), [(0, "certain"), (1, "likely")])
def test_absent_ranks_could_make_the_sides_equal(absent: int, confidence: str) -> None:
    job = Job(3 + absent)
    job.steps(2)
    for rank in range(3):
        job.op(rank, size=(8,) if rank == 2 else (9,), done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("shape_mismatch", (2,))
    assert found.confidence.value == confidence


def test_two_against_two_is_ambiguous() -> None:
    job = Job(4)
    for rank in range(4):
        job.op(rank, size=(8,) if rank < 2 else (9,), done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("shape_mismatch", (0, 1, 2, 3))
    assert found.confidence is Confidence.AMBIGUOUS


def test_legal_differences_are_no_mismatch() -> None:
    job = Job(4, live=True)
    for rank in range(4):
        job.op(rank, size=(4, 4) if rank else (16,))
        job.op(rank, "all_to_all_single", size=(rank + 1,), out=(4 - rank,))
        job.op(rank, "gather", size=(4,), out=(4, 4) if rank == 0 else (0,), root=0)
        job.op(rank, "scatter", size=(16,) if rank == 0 else (0,), out=(4,), root=0)
    assert diagnose(job.trace(after_s=1)).verdict is Verdict.HEALTHY


def test_monitored_barrier_is_paired_with_what_the_others_issued() -> None:
    """Gloo's counter moves by two for it, so its record bears the number after the barrier's."""
    job = Job(4, live=True)
    job.steps(5)
    for rank in (0, 1, 2):
        job.seq[rank, 0] += 1
        job.op(rank, "monitored_barrier", size=(), done=False)
    job.op(3, "barrier", size=(), done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("collective_mismatch", (3,))
    assert found.findings[0].seq == 6


def test_completed_monitored_barriers_leave_no_rank_behind() -> None:
    job = Job(3, live=True)
    job.steps(2)
    for rank in range(3):
        job.seq[rank, 0] += 1
        job.op(rank, "monitored_barrier", size=())
    for rank in (0, 2):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("missing_rank", (1,))
    assert found.findings[0].seq == 5


def test_overwritten_difference_is_found_by_the_running_hash() -> None:
    job = Job(4)
    for step in range(6):
        for rank in range(4):
            job.op(rank, history=100 + step if rank != 3 else 900 + step, done=step < 5)
    for rank in range(4):
        job.rank(rank, oldest_record_id=500)
    found = diagnose(job.trace())
    assert blame(found) == ("collective_mismatch", (3,))
    assert found.confidence is Confidence.LIKELY
    assert "before" in found.summary


def test_hash_stricter_than_the_wire_accuses_no_rank() -> None:
    job = Job(4)
    for step in range(6):
        for rank in range(4):
            strict = rank == 3 and step >= 3
            job.op(rank, history=900 + step if strict else 100 + step, done=step < 5)
    assert blame(diagnose(job.trace())) == ("stuck_collective", ())


@pytest.mark.parametrize(
    ("op", "listed"), [("all_gather", "output_sizes"), ("reduce_scatter", "input_sizes")]
)
def test_members_with_parts_of_different_sizes_agree_if_their_lists_do(
    op: str, listed: str
) -> None:
    """Each member's own part may have its own size: what it expects of all must be equal."""
    job = Job(3)
    job.steps(3)
    for rank in range(3):
        part = (8 + rank,)
        job.op(rank, op, size=part, out=part, reduce_op=None, done=False)
    trace = job.trace()
    parts = {listed: ((8,), (9,), (10,))}
    signatures = [replace(s, **parts) if s.op == op else s for s in trace.signatures]
    found = diagnose(replace(trace, signatures=tuple(signatures)))
    assert blame(found) == ("stuck_collective", ())
