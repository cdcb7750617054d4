"""Operations with unknown rules are compared with what their members passed before."""

from __future__ import annotations

from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from tests.diagnosis.builder import Job, blame

OP = "fused_exchange"


def _job(odd: dict[str, Any], *, before: int = 3, earlier: dict[str, Any] | None = None) -> Job:
    """Rank 2 passes something of its own at the last call, and in ``earlier`` also at the first."""
    job = Job(4)
    for call in range(before):
        for rank in range(4):
            job.op(rank, OP, size=(8 * (call + 1),), **(earlier or {} if rank == 2 else {}))
        job.all()
    for rank in range(4):
        job.op(rank, OP, done=False, **{"size": (64,), **(odd if rank == 2 else {})})
    return job


def _judged(job: Job) -> Diagnosis:
    return diagnose(job.trace())


@pytest.mark.parametrize(
    ("odd", "verdict"),
    [({"size": (72,)}, "shape_mismatch"), ({"dtype": "Half"}, "dtype_mismatch")],
)
def test_argument_that_always_agreed_and_now_differs_is_a_mismatch(
    odd: dict[str, Any], verdict: str
) -> None:
    found = _judged(_job(odd))
    assert blame(found) == (verdict, (2,))
    assert found.confidence is Confidence.LIKELY
    unknowns = found.findings[0].unknowns
    assert any("what fused_exchange requires is not known" in why for why in unknowns)


def test_two_calls_are_no_habit() -> None:
    found = _judged(_job({"size": (72,)}, before=2))
    assert found.verdict is Verdict.STUCK_COLLECTIVE
    assert found.confidence is Confidence.LIKELY
    assert any("members pass different sizes" in why for why in found.findings[0].unknowns)


def test_equal_arguments_leave_a_stuck_operation_certain() -> None:
    found = _judged(_job({}))
    assert blame(found) == ("stuck_collective", ())
    assert found.confidence is Confidence.CERTAIN


def test_argument_that_differed_before_may_differ() -> None:
    """Sizes that depend on the data, as in an exchange between experts."""
    job = Job(4)
    for call in range(5):
        for rank in range(4):
            job.op(rank, OP, size=(8 * (call + 1) + rank,), done=call < 4)
    found = _judged(job)
    assert found.verdict is Verdict.STUCK_COLLECTIVE
    assert found.confidence is Confidence.LIKELY


def test_one_earlier_exception_is_enough() -> None:
    assert _judged(_job({"size": (72,)}, earlier={"dtype": "Half"})).culprits == ()


def test_equal_sides_are_undecided() -> None:
    job = Job(4)
    for call in range(4):
        for rank in range(4):
            job.op(rank, OP, size=(16 + (rank > 1) * (call == 3),), done=call < 3)
    found = _judged(job)
    assert blame(found) == ("shape_mismatch", (0, 1, 2, 3))
    assert found.confidence is Confidence.AMBIGUOUS


def test_absent_rank_precedes_a_differing_call() -> None:
    """A differing call of a present rank shows nothing while another is absent."""
    job = _job({"size": (72,)})
    job.rows = [r for r in job.rows if r["rank"] != 3 or r["completed_ns"]]
    assert _judged(job).culprits == (3,)
