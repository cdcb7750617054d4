"""Ranks that create their groups in a different order: what the numbers of the calls stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace import formats
from hangscope.trace.model import Group, Phase, Source
from tests.diagnosis.builder import SECOND, START, Job, judged

Calls = dict[int, dict[int, tuple[int, ...]]]
"""rank -> number of the call -> members it stands for there; the last one may be under way."""


def _judged(world: int, made: Calls, under_way: Calls, *, lost: tuple[int, ...] = ()) -> Diagnosis:
    job = Job(world, live=True)
    job.steps(2)
    for rank, calls in made.items():
        for number, ranks in calls.items():
            group = Group(str(number), "", ranks)
            if group not in job.groups:
                job.groups.append(group)
            job.members.append({"rank": rank, "group": job.groups.index(group)})
    for rank in range(world):
        for number, ranks in under_way.get(rank, {}).items():
            detail = f"call {number}, ranks {','.join(map(str, ranks))}"
            job.rank(rank, phases=(Phase("new_group", START + SECOND, detail),))
        if rank not in under_way:
            job.op(rank, "barrier", done=False)
        job.rank(rank, observed_ns=START + 60 * SECOND)
    if lost:
        job.lose(*lost)
        job.members = [m for m in job.members if m["rank"] not in lost]
    return diagnose(job.trace())


def test_rank_with_two_groups_in_the_other_order_is_named() -> None:
    """Ranks 0 and 3 wait for the rest of their group; rank 3 would wait in another call than rank
    0."""
    found = _judged(
        4,
        {1: {2: (0, 1)}, 2: {2: (2, 3)}},
        {0: {1: (0, 1)}, 3: {2: (2, 3)}},
    )
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (1,))
    assert "call 2 of new_group is for ranks 0, 1 on rank 1 and for ranks 2, 3 on ranks 2, 3" in (
        found.summary
    )
    assert "in the same order" in found.findings[0].fix


def test_every_rank_in_a_call_of_another_number() -> None:
    """A grid of 2 x 4, whose rank 5 makes the rows before the columns."""
    rows, columns = (0, 2, 4, 6), (1, 3, 5, 7)
    pairs = {r: {1 + r // 2: (r - r % 2, r - r % 2 + 1)} for r in (0, 1, 2, 3, 6, 7)}
    waiting: Calls = {r: {5 + r % 2: columns if r % 2 else rows} for r in range(8)}
    waiting |= {4: {3: (4, 5)}, 5: {2: columns}}
    found = _judged(8, pairs, waiting)
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (5,))
    assert found.confidence.value == "certain"


def test_contradicting_halves_are_both_named() -> None:
    found = _judged(
        4,
        {},
        {r: {1: (0, 1, 2, 3)} for r in (0, 1)} | {r: {1: (1, 2, 3)} for r in (2, 3)},
    )
    assert (found.culprits, found.confidence.value) == ((0, 1, 2, 3), "ambiguous")


def test_parts_of_a_job_that_number_their_own_groups_do_not_contradict() -> None:
    found = _judged(
        4,
        {0: {1: (0, 1)}, 1: {1: (0, 1)}, 2: {1: (2, 3)}, 3: {1: (2, 3)}},
        {0: {2: (0, 1, 2, 3)}, 1: {2: (0, 1, 2, 3)}, 2: {2: (0, 1, 2, 3)}},
    )
    assert found.culprits == (3,)
    assert "other groups" not in found.summary


def test_parts_of_a_job_that_do_not_return_from_one_call_contradict() -> None:
    """Each half creates only its own group, and both meet under one name in the store."""
    found = _judged(4, {}, {0: {1: (0, 1)}, 1: {1: (0, 1)}, 2: {1: (2, 3)}, 3: {1: (2, 3)}})
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0, 1, 2, 3))
    assert found.confidence.value == "ambiguous"
    assert "call 1 of new_group is for ranks 0, 1 on ranks 0, 1 and for ranks 2, 3 on" in (
        found.summary
    )


def test_different_groups_created_at_one_time_are_no_evidence_of_numbers() -> None:
    """Without the records of rank 1, the calls of ranks 0 and 3 belong to two groups."""
    found = _judged(
        4,
        {2: {2: (2, 3)}},
        {0: {1: (0, 1)}, 3: {2: (2, 3)}},
        lost=(1,),
    )
    assert not {0, 2, 3} & set(found.culprits) or found.confidence.value == "ambiguous"


@pytest.mark.parametrize("version", ["2.4", "none"])
def test_recorders_that_number_groups_themselves_prove_nothing(version: str) -> None:
    job = Job(4)
    job.steps(3)
    job.groups += [Group("1", "", (0, 1)), Group("1", "", (2, 3)), Group("1", "", (1, 2))]
    for rank, group in ((0, 1), (2, 2), (3, 2), (1, 3)):
        job.members.append({"rank": rank, "group": group})
    for rank in (0, 1, 2):
        job.op(rank, done=False)
    source = Source("dump", formats.PICKLE, version)
    found = diagnose(replace(job.trace(), sources=(source,)))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (3,))


def _of_dumps(*, used: bool, together: bool = False) -> Job:
    """Rows (0, 1), (2, 3) are call 1, columns (0, 2), (1, 3) call 2, but on rank 3 the other way
    round. Its row and its column wait for it, and it for them. ``used``: it has used its own
    before; ``together``: with the others, who count their calls as they like."""
    job = Job(4)
    groups = {(n, ranks): 0 for n in (1, 2) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
    for number, ranks in groups:
        groups[number, ranks] = job.group(*ranks)
        job.groups[-1] = Group(str(number), "", ranks)
    for rank, row, column in ((0, (0, 1), (0, 2)), (1, (0, 1), (1, 3)), (2, (2, 3), (0, 2))):
        job.op(rank, group=groups[1, row], done=rank < 2 or together)
        if rank != 2 or together:
            job.op(rank, group=groups[2, column], done=together)
    if used or together:
        job.op(3, group=groups[2, (2, 3)], done=together)
    if together:
        job.op(3, group=groups[1, (1, 3)])
    if together:
        for rank in (0, 1, 2):
            job.op(rank, done=False)
    return job


def _as_dumps(job: Job) -> tuple[Verdict, tuple[int, ...], Confidence]:
    sources = tuple(Source(f"dump_{r}", formats.PICKLE, "2.9", r) for r in range(4))
    return judged(replace(job.trace(), sources=sources))


def test_group_that_no_rank_waits_in_contradicts_nothing() -> None:
    """Rank 3 reached neither: the names of its groups are not on record."""
    verdict, culprits, _ = _as_dumps(_of_dumps(used=False))
    assert (verdict, culprits) == (Verdict.MISSING_RANK, (3,))


def test_groups_in_use_may_be_numbered_by_each_rank_itself() -> None:
    verdict, culprits, _ = _as_dumps(_of_dumps(used=True, together=True))
    assert (verdict, culprits) == (Verdict.MISSING_RANK, (3,))
