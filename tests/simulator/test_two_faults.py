"""Cases with two faults at once, and how answers to them are judged."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from hangscope.diagnosis import diagnose
from tools.simulator import outcomes, score
from tools.simulator.faults import FAULTS, ON_REQUEST, draw
from tools.simulator.ring_traces import ring_trace
from tools.simulator.two_faults import TWO_FAULTS, draw_two, judge_two


@pytest.mark.parametrize("fault", TWO_FAULTS)
def test_both_faults_show(fault: str) -> None:
    case = draw_two(1, 1, fault)
    (stopped,) = [r for r, host in enumerate(case.hosts) if host.function == "load_batch"]
    assert {stopped} < case.truth.culprits
    assert len(case.truth.culprits) == 2
    assert all(item.completed < inf for item in case.run.issued[stopped])
    assert case.run.somebody_waits


def test_an_answer_is_exact_if_each_rank_has_a_finding_of_its_own() -> None:
    case = draw_two(2, 1, "stopped beside another dtype")
    found = diagnose(ring_trace(case))
    assert judge_two(case, found) == (outcomes.EXACT, 0, False)
    half = replace(found, findings=found.findings[:1])
    assert judge_two(case, half) == (outcomes.PART, 0, False)
    (named,) = half.findings[0].culprits
    case.truth = replace(case.truth, culprits=case.truth.culprits - {named})
    assert judge_two(case, half)[:2] == (outcomes.WRONG, 1)
    assert judge_two(case, replace(found, findings=()))[0] == outcomes.UNDECIDED


@pytest.mark.slow
def test_both_ranks_are_named_in_most_cases() -> None:
    drawn = list(score.run(60, 5, with_stock=False, two=True))
    assert not any(o.mine in (outcomes.WRONG, outcomes.CRASH) or o.certain_wrong for o in drawn)
    assert sum(o.mine == outcomes.EXACT for o in drawn) > 54


def test_a_receive_is_left_out_only_if_asked_for() -> None:
    """It would change the cases of all earlier seeds."""
    assert FAULTS.keys().isdisjoint(ON_REQUEST)
    case = draw(1, 1, "unreceived")
    (rank,) = case.truth.culprits
    waiting = [i for issued in case.run.issued for i in issued if i.completed == inf]
    assert any(i.op.kind == "send" and i.op.peer == rank for i in waiting)
