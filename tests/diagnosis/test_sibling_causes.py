"""The same mistake by a row of ranks in sibling groups is one cause."""

from __future__ import annotations

from hangscope.diagnosis.causes.sibling_causes import merged_finding
from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from tests.diagnosis.builder import Job


def _replicas(*absent: int, late: int = 0) -> Job:
    """Two tensor ranks in each of three replicas; data groups are 0, 2, 4 and 1, 3, 5.

    ``absent`` have not come to what their data group waits in, and rank 1's has come one further
    per ``late``.
    """
    job = Job(6)
    data = [job.group(lane, lane + 2, lane + 4, desc="DATA") for lane in (0, 1)]
    for group in data:
        for _ in range(3):
            job.all(group=group)
    for _ in range(late):
        job.all(group=data[1])
    for rank in range(6):
        if rank not in absent:
            job.op(rank, group=data[rank % 2], done=False)
    return job


def test_row_missing_in_its_groups_is_one_cause() -> None:
    (found,) = diagnose(_replicas(2, 3).trace()).findings
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2, 3))
    assert found.victims == (0, 1, 4, 5)
    assert found.summary.endswith("; likewise rank 3 in a sibling group")
    assert any("Rank 3 never joined" in line for line in found.evidence)


def test_ranks_at_other_places_of_their_groups_are_no_row() -> None:
    found = diagnose(_replicas(2, 5).trace()).findings
    assert {f.culprits for f in found} == {(2,), (5,)}


def test_groups_waiting_at_other_numbers_are_reported_separately() -> None:
    found = diagnose(_replicas(2, 3, late=1).trace()).findings
    assert {f.culprits for f in found} == {(2,), (3,)}


def test_mismatch_of_a_row_names_all_of_it() -> None:
    job = _replicas(2, 3)
    for rank in (2, 3):
        job.op(rank, "all_gather", group=1 + rank % 2, done=False)
    (found,) = diagnose(job.trace()).findings
    assert (found.verdict, found.culprits) == (Verdict.COLLECTIVE_MISMATCH, (2, 3))
    assert found.confidence is Confidence.CERTAIN


def test_row_is_as_certain_as_its_least_certain_member() -> None:
    first, second = (
        Finding(Verdict.MISSING_RANK, (rank,), (), confidence, f"Rank {rank} never came")
        for rank, confidence in ((2, Confidence.CERTAIN), (3, Confidence.LIKELY))
    )
    found = merged_finding([first, second])
    assert (found.culprits, found.confidence) == ((2, 3), Confidence.LIKELY)
    assert merged_finding([first]) is first
