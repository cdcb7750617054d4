"""Groups created by their members only: who waits for whom while they are created."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import Phase
from tests.diagnosis.builder import SECOND, START, Job

A, B, ALL = "members only, ranks 0,1,2", "members only, ranks 0,1,3", "members only, ranks 0,1,2,3"


def _judged(making: Mapping[int, str], world: int = 4, *, live: bool = True) -> Diagnosis:
    """Ranks that are in ``new_group`` with these details; the others wait for all."""
    job = Job(world, live=live)
    job.steps(3)
    for rank in range(world):
        detail = making.get(rank)
        if detail is None:
            job.op(rank, done=False)
        else:
            phases = (Phase("new_group", START + 9 * SECOND, detail),)
            job.rank(rank, phases=phases)
    return diagnose(job.trace())


def test_two_ranks_creating_two_groups_in_crossed_order_wait_for_each_other() -> None:
    found = _judged({0: A, 1: B, 2: A, 3: B})
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (0, 1))
    assert found.confidence.value == "ambiguous"


def test_rank_creating_groups_in_another_order_than_two_others_is_named() -> None:
    found = _judged({0: A, 1: A, 2: ALL, 3: ALL})
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (2,))


def test_bystander_that_waits_for_all_is_not_accused() -> None:
    # Ranks 0 and 2 make a group of three, rank 1 one of two: rank 3 has no part in it.
    found = _judged({0: A, 1: "members only, ranks 0,1", 2: A})
    assert found.verdict.value == "deadlock_cycle"
    assert set(found.culprits) <= {0, 1}
    assert found.confidence.value == "ambiguous"


def test_absent_member_is_missing_and_no_other() -> None:
    job = Job(4, live=True)
    job.steps(3)
    for rank, detail in {0: "members only, ranks 0,1", 1: "members only, ranks 0,1"}.items():
        job.rank(rank, phases=(Phase("new_group", START + 9 * SECOND, detail),))
    job.rank(2, phases=(Phase("new_group", START + 9 * SECOND, "members only, ranks 2,3"),))
    found = diagnose(job.trace())
    first = next(f for f in found.findings if f.verdict.value == "missing_rank")
    assert first.culprits == (3,)
    assert first.victims == (2,)


@pytest.mark.parametrize("detail", ["members only", "members only, ranks 0,1,..."])
def test_unlisted_members_accuse_no_rank(detail: str) -> None:
    found = _judged(dict.fromkeys(range(3), detail), world=4)
    assert found.confidence.value != "certain" or not found.culprits
