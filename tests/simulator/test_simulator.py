"""The virtual jobs themselves, and the analyzer's score on a sample of their hangs."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from hangscope.trace.load import load_trace
from tools.simulator import score
from tools.simulator.dialects import DIALECTS, EPOCH_NS
from tools.simulator.execute import Machine
from tools.simulator.faults import ENDS_WELL, FAULTS, draw
from tools.simulator.native_dumps import write
from tools.simulator.ring_traces import ring_trace
from tools.simulator.shapes import SHAPES
from tools.simulator.shapes import write as write_program


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("blocking", [False, True])
def test_program_without_a_fault_ends(shape: str, blocking: bool) -> None:
    rng = random.Random(7)
    job = write_program(shape, 8, 6, blocking, rng)
    run = Machine(job, rng).run()
    assert not run.hung
    assert run.last > 0


def test_equal_seeds_give_equal_cases() -> None:
    a, b = draw(3, 1, "host_stuck"), draw(3, 1, "host_stuck")
    assert a.truth == b.truth
    assert [len(i) for i in a.run.issued] == [len(i) for i in b.run.issued]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_an_effect(fault: str) -> None:
    case = draw(1, 1, fault)
    healthy = case.truth.verdicts <= {"healthy", "quiescent"}
    ends = healthy or fault in ENDS_WELL  # wrong results hang nobody
    pending = any(item.completed == float("inf") for issued in case.run.issued for item in issued)
    assert pending != ends
    assert healthy or case.truth.culprits or "stuck_collective" in case.truth.verdicts


@pytest.mark.parametrize("name", [n for n in DIALECTS if n != "ring"])
def test_dialect_gives_the_verdict_of_the_ring(name: str, tmp_path: Path) -> None:
    case = draw(5, 1, "different_op", "ddp")
    case.keep = 0
    write(case, DIALECTS[name], tmp_path)
    trace = load_trace([tmp_path])
    ring = ring_trace(case)
    assert set(trace.ranks) == set(ring.ranks)
    dialect = DIALECTS[name]
    unfinished = sum(r["state"] != 2 for r in ring.records)
    expected = unfinished if dialect.only_active else len(ring.records)
    if name == "job log":  # a watchdog prints the operation that it waits for, not all of them
        assert 0 < len(trace.records) <= unfinished
    else:
        assert len(trace.records) == expected
    assert int(trace.records["created_ns"].min()) >= EPOCH_NS


@pytest.mark.slow
def test_sample_has_no_certain_wrong_answer_and_few_inexact_ones() -> None:
    """A sample of docs/simulator-score.md; `python -m tools.simulator` runs all of it."""
    outcomes = list(score.run(330, 11, with_stock=False))
    counts = Counter(o.mine for o in outcomes)
    failures = [(o.case.truth.fault, o.dialect, o.detail) for o in outcomes if o.mine != "exact"]
    assert counts["crash"] == 0
    assert not [o.detail for o in outcomes if o.certain_wrong]
    assert counts["exact"] / len(outcomes) >= 0.98, failures


ON_RECORD = [
    "host_stuck", "fewer_batches", "extra", "skipped", "different_op", "different_shape",
    "device_stuck", "moving", "slow",
]  # fmt: skip
"""Faults that show in what the other ranks recorded, whoever of the innocent left nothing."""


@pytest.mark.slow
def test_victim_without_a_dump_is_not_the_culprit() -> None:
    names = [name for name in DIALECTS if "only active" not in name and name != "job log"]
    outcomes = list(
        score.run(108, 17, with_stock=False, dialects=names, faults=ON_RECORD, lose=True)
    )
    assert not any(o.certain_wrong or o.mine == score.CRASH for o in outcomes)
    wrong = [o.case.number for o in outcomes if o.mine == score.WRONG]
    assert len(wrong) <= 4
