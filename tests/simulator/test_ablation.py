"""The tool that switches parts of the diagnosis off."""

from __future__ import annotations

import pytest

import hangscope.diagnosis.engine as engine
from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.model import Verdict
from tools.ablation.corpora import Case, simulated
from tools.ablation.items import Item, items, switched_off
from tools.ablation.measure import Change, answer, baseline, without
from tools.ablation.tables import effect


@pytest.fixture(scope="module")
def every_item() -> dict[str, Item]:
    return {item.name: item for item in items()}


def test_a_function_switched_off_has_nothing_to_say(every_item: dict[str, Item]) -> None:
    item = every_item["causes.graph_causes:graph_causes"]
    (case,) = simulated(1, 3, faults=["host_stuck"], dialects=["ring"])
    assert engine.diagnose(case.trace).culprits
    with switched_off([item]):
        assert not engine.diagnose(case.trace).culprits
    assert engine.diagnose(case.trace).culprits


def test_a_pass_switched_off_returns_what_it_was_given(every_item: dict[str, Item]) -> None:
    cause = Cause(Verdict.MISSING_RANK, (1,))
    passes = [
        item
        for item in every_item.values()
        if item.function.__annotations__
        == {"context": "Context", "cause": "Cause", "return": "Cause"}
    ]
    assert passes
    with switched_off(passes):
        assert all(item.function(None, cause) is cause for item in passes)


def test_an_ablation_reports_what_changes(every_item: dict[str, Item]) -> None:
    cases: list[Case] = list(simulated(6, 3, faults=["host_stuck"], dialects=["ring"]))
    chosen = [every_item["causes.graph_causes:graph_causes"], every_item["cause:began"]]
    base = baseline({"default": cases}, chosen)
    assert base.answers["default"] == [answer(case) for case in cases]
    ((_, tried, changes),) = without(base, [[0]], most=40, seed=1)
    assert tried == len(cases)
    assert {effect(change) for change in changes} == {"lost"}
    assert all(isinstance(change, Change) for change in changes)
