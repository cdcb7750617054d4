"""Clues reported with a verdict that never decide it: call sites, mismatches that finished."""

from __future__ import annotations

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace import formats
from hangscope.trace.model import ExitFacts, Flag, Source

from .builder import SECOND, START, Job


def skipping(agreed: int) -> Job:
    """Rank 2 takes another branch to the same collective and diverges one collective later."""
    job = Job(4)
    job.steps(agreed)
    for rank in range(4):
        job.op(rank, line=120 if rank == 2 else 88)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    return job


def test_the_first_call_site_that_differs_is_a_clue() -> None:
    (finding,) = diagnose(skipping(6).trace()).findings
    assert finding.culprits == (2,)
    (clue,) = [e for e in finding.evidence if e.startswith("already at")]
    assert "#7 of the group rank 2 came from train.py:120" in clue
    assert "the others from train.py:88" in clue


def test_what_is_to_be_compared_is_where_the_ranks_parted_first() -> None:
    job = Job(4)
    job.steps(6)
    for rank in range(4):
        job.op(rank, line=120 if rank == 2 else 88)
    for rank in range(4):
        job.op(rank, "broadcast" if rank == 2 else "all_reduce", line=121, done=False)
    (finding,) = diagnose(job.trace()).findings
    assert (finding.verdict.value, finding.culprits) == ("collective_mismatch", (2,))
    lines = "compare train.py:120 in train with train.py:88 in train"
    assert finding.fix.startswith(f"{lines}, where they parted at #7; ")


def test_a_collective_always_reached_from_two_places_is_no_clue() -> None:
    job = Job(4)
    for _ in range(8):
        for rank in range(4):
            job.op(rank, line=120 if rank == 2 else 88)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    (finding,) = diagnose(job.trace()).findings
    assert not [e for e in finding.evidence if e.startswith("already at")]


def test_a_call_site_alone_accuses_nobody() -> None:
    job = Job(4, live=True)
    job.steps(6)
    for rank in range(4):
        job.op(rank, line=120 if rank == 2 else 88)
    assert not diagnose(job.trace(after_s=1)).findings


def test_a_difference_that_everybody_finished_gives_way_to_who_is_missing() -> None:
    job = Job(4)
    job.steps(3)
    for rank in range(4):
        job.op(rank, size=(8,) if rank == 1 else (16,))
    job.steps(2)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    first, second = diagnose(job.trace()).findings
    assert (first.verdict.value, first.culprits) == ("missing_rank", (2,))
    assert (second.verdict.value, second.culprits) == ("shape_mismatch", (1,))
    assert second.confidence is not Confidence.CERTAIN


def test_a_difference_that_everybody_finished_explains_a_fabric_that_stands_still() -> None:
    job = Job(4)
    job.steps(3)
    for rank in range(4):
        job.op(rank, size=(8,) if rank == 1 else (16,))
    job.all(done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("shape_mismatch", (1,))
    assert found.confidence is Confidence.LIKELY


def test_the_difference_that_nobody_finished_is_the_one_that_counts() -> None:
    job = Job(4)
    for rank in range(4):
        job.op(rank, size=(8,) if rank == 1 else (16,))
    for rank in range(4):
        job.op(rank, dtype="Half" if rank == 3 else "Float", done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("dtype_mismatch", (3,))


def test_silence_about_completion_makes_no_answer_certain() -> None:
    job = Job(4)
    other = job.group(2, 3, desc="pair")
    for rank in range(4):
        job.op(rank, flags=Flag.UNOBSERVED, done=False)
    job.all(group=other, flags=Flag.UNOBSERVED, done=False)
    for rank in (0, 1, 3):
        job.op(rank, flags=Flag.UNOBSERVED, done=False)
    found = diagnose(job.trace())
    assert found.culprits == (2,)
    assert found.confidence is not Confidence.CERTAIN


def test_that_nothing_waits_is_not_certain_where_a_rank_has_left_no_record() -> None:
    job = Job(3)
    job.steps(3)
    for rank in range(3):
        job.rank(rank, alive=False, exit=ExitFacts("clean", code=0, at_ns=START + SECOND))
    rings = [Source(f"rank_{r}.ring", formats.RING, "3", r) for r in range(3)]
    whole = diagnose(job.trace(sources=tuple(rings)))
    assert (whole.verdict, whole.confidence) == (Verdict.HEALTHY, Confidence.CERTAIN)
    job.rows = [row for row in job.rows if row["rank"] != 2]
    journal = Source("monitor.journal", formats.JOURNAL, "1", None)
    part = diagnose(job.trace(sources=(*rings[:2], journal)))
    assert part.confidence is not Confidence.CERTAIN
