"""Dumps that number each rank's own groups: what all meshes that fit say."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.groups.hypotheses import by_meshes
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.model import Group, Source
from tests.diagnosis.builder import Job

WORLD = 8


def own_numbers() -> Job:
    """Number 1 of every rank is its shard group, four ranks in a row; number 2 its replicas."""
    job = Job(WORLD)
    job.groups = [Group(name) for name in "012"]
    return job


def step(job: Job, *, without: int = -1, done: bool = True) -> None:
    """Three reductions in the shard groups, one among replicas, one of everybody.

    ``without`` leaves the second of them out; hosts run ahead of devices.
    """
    for rank in range(WORLD):
        near = done or rank // 4 != without // 4
        far = done
        for number in range(3):
            if rank != without or number != 1:
                job.op(rank, group=1, size=(64 + number,), line=10, done=near or number == 0)
        job.op(rank, group=2, size=(256,), line=20, done=far)
        job.op(rank, group=0, size=(1,), line=30, done=far)


def judged(job: Job, *lost: int) -> Diagnosis:
    job.lose(*lost)
    sources = tuple(
        Source(f"{r}", "flight-recorder-pickle", "none", r, 9) for r in sorted(job.facts)
    )
    return diagnose(job.trace(sources=sources))


def test_who_left_a_collective_of_an_unlisted_group_out_is_named() -> None:
    job = own_numbers()
    for _ in range(3):
        step(job)
    step(job, without=6, done=False)
    found = judged(job)
    assert (found.verdict, found.culprits) == (Verdict.SHAPE_MISMATCH, (6,))
    assert found.confidence is Confidence.LIKELY
    assert any("not listed" in text for text in found.findings[0].unknowns)
    assert {s.version for s in found.sources} == {"none"}


def test_meshes_that_would_need_more_mistakes_do_not_count() -> None:
    """Groups of two would fit as well; then two mistakes were made, or networks failed by pairs.

    In groups of four the sibling group tells which half is right.
    """
    job = own_numbers()
    for _ in range(3):
        step(job)
    for rank in range(WORLD):
        odd = rank in (6, 7)
        job.op(rank, group=1, size=(7 if odd else 64,), done=rank < 4)
        job.op(rank, group=0, size=(1,), line=30, done=False)
    found = judged(job)
    assert (found.verdict, found.culprits) == (Verdict.SHAPE_MISMATCH, (6, 7))
    assert found.confidence is Confidence.LIKELY


@pytest.mark.parametrize("version", ["2.4", "none"])
def test_only_dumps_without_names_are_shared_out(version: str) -> None:
    job = own_numbers()
    step(job)
    sources = tuple(Source(f"{r}", "flight-recorder-pickle", version, r, 9) for r in range(WORLD))
    judges: list[int] = []

    def judge(trace: object) -> Diagnosis:
        judges.append(1)
        return Diagnosis(Verdict.HEALTHY, (), Confidence.CERTAIN, "")

    assert by_meshes(job.trace(sources=sources), judge) is None
    assert bool(judges) == (version == "none")


def test_a_number_of_which_some_ranks_know_nothing_leaves_it_open() -> None:
    """Ends of a pipeline are in one group more than the rest: their numbers mean something else."""
    job = own_numbers()
    step(job)
    for rank in (0, 7):
        job.op(rank, group=len(job.groups) - 1 if rank else 1, size=(5,))
    job.groups.append(Group("3"))
    job.op(0, group=3, size=(5,), done=False)
    sources = tuple(Source(f"{r}", "flight-recorder-pickle", "none", r, 9) for r in range(WORLD))
    assert by_meshes(job.trace(sources=sources), diagnose) is None
