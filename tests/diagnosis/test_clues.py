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


def test_first_different_call_site_is_a_clue() -> None:
    (finding,) = diagnose(skipping(6).trace()).findings
    assert finding.culprits == (2,)
    (clue,) = [e for e in finding.evidence if e.startswith("already at")]
    assert "#7 of the group rank 2 came from train.py:120" in clue
    assert "the others from train.py:88" in clue


def parted(world: int, odd: int, line: int) -> Job:
    """Rank ``odd`` takes another branch to the same collective and issues another one after it, all
    of them from the same line then."""
    job = Job(world)
    job.steps(6)
    for rank in range(world):
        job.op(rank, line=120 if rank == odd else 88)
    for rank in range(world):
        job.op(rank, "broadcast" if rank == odd else "all_reduce", line=line, done=False)
    return job


def test_clue_is_the_place_where_ranks_first_diverged() -> None:
    (finding,) = diagnose(parted(4, odd=2, line=121).trace()).findings
    assert (finding.verdict.value, finding.culprits) == ("collective_mismatch", (2,))
    lines = "compare train.py:120 in train with train.py:88 in train"
    assert finding.fix.startswith(f"{lines}, where they parted at #7; ")


def test_clue_between_two_equal_sides() -> None:
    """It says where to look, and leaves open which of the two is wrong."""
    (finding,) = diagnose(parted(2, odd=1, line=88).trace()).findings
    assert (finding.culprits, finding.confidence) == ((0, 1), Confidence.AMBIGUOUS)
    assert finding.fix.startswith("compare train.py:88 in train with train.py:120 in train, where")
    (clue,) = [e for e in finding.evidence if e.startswith("already at")]
    assert "#7 of the group rank 0 came from train.py:88" in clue


def test_collective_always_issued_from_two_lines_is_no_clue() -> None:
    job = Job(4)
    for _ in range(8):
        for rank in range(4):
            job.op(rank, line=120 if rank == 2 else 88)
    for rank in (0, 1, 3):
        job.op(rank, done=False)
    (finding,) = diagnose(job.trace()).findings
    assert not [e for e in finding.evidence if e.startswith("already at")]


def test_call_site_alone_accuses_no_rank() -> None:
    job = Job(4, live=True)
    job.steps(6)
    for rank in range(4):
        job.op(rank, line=120 if rank == 2 else 88)
    assert not diagnose(job.trace(after_s=1)).findings


def test_completed_difference_yields_to_a_missing_rank() -> None:
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


def test_completed_difference_explains_a_stuck_collective() -> None:
    job = Job(4)
    job.steps(3)
    for rank in range(4):
        job.op(rank, size=(8,) if rank == 1 else (16,))
    job.all(done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("shape_mismatch", (1,))
    assert found.confidence is Confidence.LIKELY


def test_uncompleted_difference_takes_precedence() -> None:
    job = Job(4)
    for rank in range(4):
        job.op(rank, size=(8,) if rank == 1 else (16,))
    for rank in range(4):
        job.op(rank, dtype="Half" if rank == 3 else "Float", done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("dtype_mismatch", (3,))


def test_unknown_completion_makes_no_answer_certain() -> None:
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


def test_absence_of_waiting_is_not_certain_without_all_records() -> None:
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
