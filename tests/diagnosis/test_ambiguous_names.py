"""Dumps whose entries do not identify their groups: one name, several groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.load import load_trace
from tests.trace.dumps import BASE_NS, dump, entry, pending, write

Call = tuple[int, str, bool]
"""Number in its group, operation, finished or not."""


def _judged(folder: Path, ranks: dict[int, list[Call]], **named: Any) -> Diagnosis:
    """Dumps without member lists, whose entries have no name except ``named``."""
    for rank, calls in ranks.items():
        entries = [
            (entry if done else pending)(
                number,
                f"nccl:{op}",
                record_id=place,
                time_created_ns=BASE_NS + place * 10**9,
                process_group=None,
                **{"pg_id": None, **named},
            )
            for place, (number, op, done) in enumerate(calls)
        ]
        write(folder, f"trace_{rank}", dump(entries, pg_config=None, pg_status=None))
    return diagnose(load_trace([folder]))


def _steps(count: int) -> list[Call]:
    """In each step two calls in a pair, one in the whole job."""
    pair = [(number, "all_reduce", True) for number in range(1, 2 * count + 1)]
    world = [(number, "all_gather", True) for number in range(1, count + 1)]
    return [call for i in range(count) for call in (*pair[2 * i : 2 * i + 2], world[i])]


def test_hang_is_not_healthy_if_group_numbers_are_ambiguous(tmp_path: Path) -> None:
    """Of two pairs, the first waits for rank 1; the numbers of the default group are far behind."""
    ranks = {rank: _steps(4) for rank in range(4)}
    ranks[0].append((9, "all_reduce", False))
    for rank in (2, 3):
        ranks[rank] += [(9, "all_reduce", True), (5, "all_gather", False)]
    found = _judged(tmp_path, ranks)
    assert found.verdict is not Verdict.HEALTHY
    assert not set(found.culprits) - {1}


def test_completion_under_an_ambiguous_name_is_not_certain_for_all(tmp_path: Path) -> None:
    found = _judged(tmp_path, {rank: _steps(4) for rank in range(4)})
    assert found.verdict in (Verdict.HEALTHY, Verdict.QUIESCENT)
    assert found.confidence is Confidence.LIKELY


@pytest.mark.parametrize("number", [0, 1])
def test_same_number_completed_at_different_times_means_several_groups(
    tmp_path: Path, number: int
) -> None:
    """Pairs (0, 1) and (2, 3) run different programs; ranks 2 and 3 differ at their last call."""
    first: list[Call] = [(n, "all_reduce", True) for n in range(1, 6)]
    second: list[Call] = [(n, "all_to_all", True) for n in range(1, 9)]
    waiting: Call = (9, "all_to_all", False)
    ranks = {0: first, 1: first, 2: [*second, waiting], 3: second}
    found = _judged(tmp_path, ranks, pg_id=number)
    assert set(found.culprits) <= {2, 3}
    assert found.confidence is not Confidence.CERTAIN


def test_single_group_needs_no_name(tmp_path: Path) -> None:
    steps: list[Call] = [(n, "all_reduce", True) for n in range(1, 6)]
    waiting: Call = (6, "all_reduce", False)
    found = _judged(tmp_path, {rank: [*steps, waiting] if rank else steps for rank in range(4)})
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (0,))
