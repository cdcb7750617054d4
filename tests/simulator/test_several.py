"""Cases in which several ranks make the same mistake, and how answers to them are judged."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence
from tools.simulator import outcomes, score
from tools.simulator.execute import Machine
from tools.simulator.faults import draw
from tools.simulator.more_shapes import MORE_LARGE, MORE_SHAPES
from tools.simulator.ring_traces import ring_trace
from tools.simulator.several import MISTAKES, draw_several, judge_several
from tools.simulator.shapes import SHAPES, write


@pytest.mark.parametrize("shape", sorted(MORE_SHAPES.keys() - SHAPES.keys()))
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("world", [8, 16])
def test_a_program_of_more_dimensions_ends(shape: str, blocking: bool, world: int) -> None:
    assert shape in MORE_LARGE
    job = write(shape, world, 6, blocking, random.Random(7), MORE_SHAPES)
    run = Machine(job, random.Random(7)).run()
    assert not run.hung
    assert run.last > 0


@pytest.mark.parametrize("fault", MISTAKES)
def test_several_ranks_are_at_fault_and_others_wait(fault: str) -> None:
    case = draw_several(1, 1, fault)
    assert 2 <= len(case.truth.culprits) < case.run.job.world
    assert case.run.somebody_waits
    again = draw_several(1, 1, fault)
    assert again.truth == case.truth
    assert [len(i) for i in again.run.issued] == [len(i) for i in case.run.issued]


def test_an_answer_is_compared_with_all_ranks_at_fault() -> None:
    case = draw_several(5, 1, "several stop")
    found = diagnose(ring_trace(case))
    assert set(found.culprits) == case.truth.culprits
    assert judge_several(case, found) == (outcomes.EXACT, 0, False)
    one, *others = sorted(case.truth.culprits)
    case.truth = replace(case.truth, culprits=frozenset({*case.truth.culprits, 99}))
    assert judge_several(case, found)[0] == outcomes.PART
    case.truth = replace(case.truth, culprits=frozenset(others), ambiguous_with=frozenset())
    certain = found.confidence is Confidence.CERTAIN
    assert judge_several(case, found) == (outcomes.WRONG, 1, certain)
    case.truth = replace(case.truth, ambiguous_with=frozenset({one}))
    assert judge_several(case, found)[0] == outcomes.UNDECIDED


def test_rank_that_skipped_a_collective_is_ahead_of_waiting_counterparts() -> None:
    """Hosts run ahead: the rank has issued a collective of that number since, a step later."""
    one = diagnose(ring_trace(draw(65, 650217, "skipped")))
    assert one.culprits == (12,)
    two = diagnose(ring_trace(draw_several(49, 2, "several skip")))
    assert {rank for finding in two.findings for rank in finding.culprits} == {1, 13}


@pytest.mark.slow
def test_no_innocent_rank_is_named_for_the_mistake_of_several() -> None:
    """A sample of docs/simulator-score.md."""
    drawn = list(score.run(70, 12, with_stock=False, several=True, dialects=["ring", "json 2.5"]))
    assert sum(o.mine == outcomes.WRONG for o in drawn) <= 1  # see the docs
    assert not any(o.mine == outcomes.CRASH for o in drawn)
    assert not any(o.certain_wrong for o in drawn)
    assert sum(o.mine == outcomes.EXACT for o in drawn) * 2 > len(drawn)
