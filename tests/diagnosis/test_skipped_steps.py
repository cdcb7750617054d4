"""Gradients meet another operation: was a bucket left out, or a whole step?"""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from tests.diagnosis.builder import Job

FIRST, SECOND, BARRIER = "first bucket", "second bucket", "barrier"
EVEN, ODD = (FIRST, SECOND), (FIRST, SECOND, BARRIER)


def _fix(of_rank_2: tuple[str, ...], of_others: tuple[str, ...]) -> str:
    """The advice after four steps in which all did the same: the last operation of each differs."""
    job = Job(3)
    for rank in range(3):
        newest = of_rank_2 if rank == 2 else of_others
        calls = (*EVEN, *ODD, *EVEN, *ODD, *newest)
        for number, call in enumerate(calls, start=1):
            done = number < len(calls)
            if call == BARRIER:
                job.op(rank, "barrier", line=12, done=done)
            else:
                size = 64 if call == FIRST else 32
                job.op(rank, size=(size,), function="backward", line=9, done=done)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (2,))
    return found.findings[0].fix


def test_rank_that_does_what_it_always_does_next_has_skipped_a_step() -> None:
    fix = _fix(of_rank_2=ODD, of_others=(*EVEN, FIRST))
    assert "gradient buckets" not in fix
    assert "skip an operation" in fix


def test_rank_that_goes_on_after_its_first_bucket_has_left_one_out() -> None:
    assert "leaves gradient buckets out" in _fix(of_rank_2=(FIRST, BARRIER), of_others=EVEN)


def test_rank_whose_gradients_meet_what_follows_them_has_left_that_out() -> None:
    fix = _fix(of_rank_2=(*EVEN, *EVEN, FIRST), of_others=(*EVEN, *ODD))
    assert "gradient buckets" not in fix
