"""All-to-alls: each rank must send what the others expect from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import ExitFacts
from tests.diagnosis.builder import Job


def test_all_to_all_that_expects_more_than_is_sent() -> None:
    job = Job(4)
    job.steps(2)
    for rank in range(4):
        job.op(rank, "all_to_all", size=(8,), out=(8 + (rank == 2),), done=False)
    found = diagnose(job.trace())
    assert found.verdict is Verdict.SHAPE_MISMATCH
    assert "32 elements are sent and 33 expected" in found.summary
    assert found.confidence is Confidence.AMBIGUOUS


def test_contradictory_splits_are_found_despite_a_lost_rank() -> None:
    job = Job(4)
    job.steps(2)
    for rank in range(4):
        job.op(rank, "all_to_all", size=(8,), out=(8,), line=rank, done=False)
    even = replace(job.trace().signatures[-1], input_splits=(2,) * 4, output_splits=(2,) * 4)
    odd = replace(even, input_splits=(2, 2, 4, 2))
    trace = job.trace()
    rows = (trace.records["rank"] == 1) & (trace.records["collective_seq"] == 3)
    trace.records["signature"][rows] = len(trace.signatures)
    trace = replace(trace, signatures=(*trace.signatures[:-1], even, odd))
    kept = trace.records[trace.records["rank"] != 3]
    facts = {rank: told for rank, told in trace.ranks.items() if rank != 3}
    found = diagnose(replace(trace, records=kept, ranks=facts))
    assert (found.verdict.value, found.culprits) == ("shape_mismatch", (1,))
    assert "rank 1 sends 4 to rank 2, which expects 2" in found.summary


def test_splits_of_one_direction_leave_the_totals() -> None:
    job = Job(4)
    job.steps(2)
    for rank in range(4):
        job.op(rank, "all_to_all", size=(8,), out=(8 + (rank == 2),), done=False)
    trace = job.trace()
    told = [replace(s, input_splits=(2,) * 4) for s in trace.signatures]
    found = diagnose(replace(trace, signatures=tuple(told)))
    assert found.verdict is Verdict.SHAPE_MISMATCH
    assert "32 elements are sent and 33 expected" in found.summary


def test_operations_in_a_group_without_the_rank_as_member_do_not_count() -> None:
    job = Job(4)
    job.steps(2)
    group = job.group(0, 1, 2, desc="ep")
    for rank in range(4):
        job.op(rank, "all_to_all", group=group, size=(8,), out=(8 + (rank == 3),), done=False)
    assert diagnose(job.trace()).verdict is not Verdict.SHAPE_MISMATCH


@pytest.mark.parametrize("splits", [(), None], ids=["in even parts", "not told"])
def test_exchange_in_even_parts_is_compared_like_a_collective(
    splits: tuple[int, ...] | None,
) -> None:
    """Rank 2 skipped one exchange: its next one meets that of the others, which abort."""
    job = Job(4)
    job.steps(2)
    for rank in range(4):
        size = (24,) if rank == 2 else (20,)
        job.op(rank, "all_to_all", size=size, out=size, done=rank == 2)
    trace = job.trace()
    told = [
        replace(s, input_splits=splits, output_splits=splits) if s.op == "all_to_all" else s
        for s in trace.signatures
    ]
    for rank in (0, 1, 3):
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=6))
    found = diagnose(replace(trace, signatures=tuple(told), ranks=job.trace().ranks))
    assert (found.verdict is Verdict.SHAPE_MISMATCH) is (splits == ())
    assert (found.culprits == (2,)) is (splits == ())


def test_even_parts_are_compared_with_split_lists() -> None:
    job = Job(3)
    job.steps(2)
    for rank in range(3):
        size = (9,) if rank == 2 else (6,)
        job.op(rank, "all_to_all", size=size, out=size, done=rank == 2)
    trace = job.trace()
    splits = {(9,): (4, 4, 1), (6,): ()}
    told = tuple(
        replace(s, input_splits=splits[s.input_sizes[0]], output_splits=splits[s.input_sizes[0]])
        if s.op == "all_to_all" and s.input_sizes is not None
        else s
        for s in trace.signatures
    )
    for rank in (0, 1):
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=6))
    found = diagnose(replace(trace, signatures=told, ranks=job.trace().ranks))
    assert (found.verdict.value, found.culprits) == ("shape_mismatch", (2,))
    assert "which expects" in found.summary


@pytest.mark.parametrize(
    ("past", "sent", "expected", "culprits"),
    [
        ((8, 8, 8), 8, 7, (1,)),
        ((8, 8, 8), 9, 8, (0,)),
        ((8, 4, 8, 4), 8, 5, (1,)),
        ((8, 9, 10, 11), 12, 11, (0, 1)),
        ((8,), 9, 8, (0, 1)),
    ],
    ids=["settled", "the sender", "in turns", "new every time", "too few"],
)
def test_new_size_accuses_only_after_constant_sizes(
    past: tuple[int, ...], sent: int, expected: int, culprits: tuple[int, ...]
) -> None:
    """Data-dependent sizes are new in every step: a rank that repeats the last size may be
    wrong."""
    job = Job(2)
    for size in past:
        job.op(0, "send", peer=1, size=(size,))
        job.op(1, "recv", peer=0, size=(size,))
    job.op(0, "send", peer=1, size=(sent,), done=False)
    job.op(1, "recv", peer=0, size=(expected,), done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("shape_mismatch", culprits)
    assert found.confidence.value == ("likely" if len(culprits) == 1 else "ambiguous")


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "both wait"])
def test_rank_that_receives_another_dtype_than_ever_before_is_likely_wrong(*, sent: bool) -> None:
    job = Job(2)
    for _ in range(4):
        job.op(0, "send", peer=1)
        job.op(1, "recv", peer=0)
        job.all()
    job.op(0, "send", peer=1, done=sent)
    job.op(1, "recv", peer=0, dtype="Half", done=False)
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (Verdict.DTYPE_MISMATCH, (1,))
    assert found.confidence is Confidence.LIKELY
    assert found.summary.startswith("The dtypes of ")
    assert "with dtype Float, and rank 1 receives with dtype Half" in found.summary


def test_either_of_two_ranks_may_expect_the_wrong_total() -> None:
    job = Job(2)
    job.steps(2)
    for rank in range(2):
        job.op(rank, "all_to_all", size=(8,), out=(8 + rank,), done=False)
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (Verdict.SHAPE_MISMATCH, (0, 1))
    assert found.confidence is Confidence.AMBIGUOUS


@pytest.mark.parametrize("sizes", [{1: (2, 2, 2, 1)}, {1: (2, 2, 2, 1), 2: (2, 2, 1, 2)}])
def test_only_member_with_a_size_that_no_pair_uses(sizes: dict[int, tuple[int, ...]]) -> None:
    """What it sends to one member is not what that one expects; all other pairs agree on one size.

    A second member with such a size leaves it open which of them is wrong.
    """
    job = Job(4)
    job.steps(2)
    for rank in range(4):
        job.op(
            rank, "all_to_all", size=(sum(sizes.get(rank, (2,) * 4)), rank), out=(8,), done=False
        )
    signatures = [
        replace(s, input_splits=sizes.get(s.input_sizes[0][1], (2,) * 4), output_splits=(2,) * 4)
        if s.op == "all_to_all" and s.input_sizes
        else s
        for s in job.signatures
    ]
    found = diagnose(job.trace(signatures=tuple(signatures)))
    assert found.verdict is Verdict.SHAPE_MISMATCH
    if len(sizes) == 1:
        assert (found.culprits, found.confidence) == ((1,), Confidence.LIKELY)
    else:
        assert {1, 2} & {*found.culprits}
        assert found.confidence is not Confidence.CERTAIN
