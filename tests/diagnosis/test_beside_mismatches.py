"""A rank that never came and a mismatch among those that came are two faults, if neither explains
the other."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import ExitFacts, Frame, ThreadStack, Trace
from tests.diagnosis.builder import SECOND, START, Job

MISMATCH = (Verdict.SHAPE_MISMATCH, (3,), Confidence.CERTAIN)
MISSING = Verdict.MISSING_RANK


def differing(*, earlier: bool = False) -> Job:
    """Six ranks; rank 3 passes another size, and rank 5 has not come.

    ``earlier``: hosts run ahead, so that all still wait for rank 5 in the operation before.
    """
    job = Job(6)
    job.steps(3)
    for rank in range(5) if earlier else ():
        job.op(rank, done=False)
    for rank in range(5):
        job.op(rank, size=(8,) if rank == 3 else (16,), done=False)
    return job


def findings(trace: Trace) -> list[tuple[Verdict, tuple[int, ...], Confidence]]:
    return [(f.verdict, f.culprits, f.confidence) for f in diagnose(trace).findings]


def test_rank_that_waits_for_nothing_is_a_finding_behind_the_mismatch() -> None:
    trace = differing().trace()
    assert findings(trace) == [MISMATCH, (MISSING, (5,), Confidence.LIKELY)]
    assert "waits, in something that is not recorded" in diagnose(trace).findings[1].unknowns[-1]


def test_rank_missing_in_another_group_is_a_finding() -> None:
    job = Job(8)
    first, second = job.group(0, 1, 2, 3, desc="tp"), job.group(4, 5, 6, 7, desc="tp")
    job.steps(2)
    job.all(group=first)
    job.all(group=second)
    for rank in (0, 1, 2, 3):
        job.op(rank, group=first, size=(8,) if rank == 3 else (16,), done=False)
    for rank in (4, 6, 7):
        job.op(rank, group=second, done=False)
    assert findings(job.trace())[0] == MISMATCH
    assert findings(job.trace())[1][:2] == (MISSING, (5,))


def test_operation_before_the_mismatch_is_not_held_up_by_it() -> None:
    """The devices have not begun what differs: the rank that did not come is the first cause."""
    first, second = findings(differing(earlier=True).trace())
    assert first == (MISSING, (5,), Confidence.CERTAIN)
    assert second[:2] == MISMATCH[:2]


def test_lost_rank_counts_only_before_the_mismatch() -> None:
    """Where the others differ, a rank without a dump may stand among them."""
    job = differing()
    job.lose(5)
    assert [found[:2] for found in findings(job.trace())] == [MISMATCH[:2]]
    job = differing(earlier=True)
    job.lose(5)
    lost, differs = findings(job.trace())
    assert lost == (Verdict.RANK_LOST, (5,), Confidence.LIKELY)
    assert differs[:2] == MISMATCH[:2]


def test_rank_that_waits_may_be_held_up_by_the_mismatch() -> None:
    job = differing()
    pair = job.group(4, 5, desc="pair")
    job.op(5, group=pair, done=False)
    assert findings(job.trace()) == [MISMATCH]


def test_rank_that_is_seen_in_communication_may_be_held_up() -> None:
    stack = (
        Frame("barrier", "/opt/torch/distributed/distributed_c10d.py", 4100),
        Frame("save", "/home/me/checkpoint.py", 7),
    )
    job = differing()
    job.rank(5, threads=(ThreadStack("MainThread", True, stack, START),))
    assert findings(job.trace()) == [MISMATCH]


def test_waits_behind_the_mismatch_accuse_nobody() -> None:
    """Rank 4 has gone too far on its host; its device stands at what differs."""
    job = Job(6)
    inner, pair = job.group(0, 1, 2, 3, 4, desc="inner"), job.group(4, 5, desc="pair")
    job.steps(3)
    for rank in range(5):
        job.op(rank, group=inner, size=(8,) if rank == 3 else (16,), done=False)
    job.op(4, group=pair, done=False)
    assert findings(job.trace()) == [MISMATCH]


def test_crash_before_a_mismatch_of_those_who_wait_for_it_is_the_first_cause() -> None:
    """Their hosts ran ahead, into a group of their own; a crash after that may follow from it."""
    job = Job(4)
    rest = job.group(1, 2, 3)
    job.steps(3)
    for rank in (1, 2, 3):
        job.op(rank, done=False, at=2.0)
    for rank in (1, 2, 3):
        job.op(rank, "broadcast" if rank == 1 else "all_reduce", group=rest, done=False, at=30.0)
    differs = (Verdict.COLLECTIVE_MISMATCH, (1,), Confidence.CERTAIN)
    for moment_s, told in (
        (1, [(Verdict.RANK_CRASHED, (0,), Confidence.CERTAIN), differs]),
        (40, [differs]),
    ):
        exited = ExitFacts("code", 1, at_ns=START + moment_s * SECOND)
        job.rank(0, alive=False, exit=exited)
        assert findings(job.trace()) == told
