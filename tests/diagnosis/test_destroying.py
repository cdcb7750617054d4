"""All ranks are inside ``destroy_process_group``, where NCCL waits for CUDA graphs, for one."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.facts import Phase
from tests.diagnosis.builder import START, Job


def destroyed_by(*ranks: int, **facts: object) -> Diagnosis:
    """The diagnosis of a live job of three ranks, of which these destroy their groups."""
    job = Job(3, live=True)
    job.steps(3)
    for rank in ranks:
        job.rank(rank, phases=(Phase("destroy_process_group", START),), **facts)
    return diagnose(job.trace())


def test_every_rank_inside_the_call_is_told() -> None:
    found = destroyed_by(0, 1, 2)
    assert (found.verdict.value, found.culprits) == ("quiescent", ())
    assert found.summary.startswith("Every rank has been inside destroy_process_group for")
    assert "delete CUDA graphs" in found.findings[0].fix
    assert "py-spy dump --native" in found.findings[0].fix


@pytest.mark.parametrize("ranks", [(), (0,), (0, 2)])
def test_other_ranks_elsewhere_are_another_matter(ranks: tuple[int, ...]) -> None:
    assert "destroy_process_group for" not in destroyed_by(*ranks).summary
