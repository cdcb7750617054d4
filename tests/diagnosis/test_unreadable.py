"""Dumps that are there and cannot be read: their ranks lived to write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.trace.load import load_trace
from tests.trace.dumps import dump, entry, pending, write


def judged(folder: Path, *, gone: set[int], damaged: set[int]) -> Diagnosis:
    for rank in set(range(6)) - gone:
        path = write(folder, f"trace_rank_{rank}", dump([entry(1), pending(2)], world=6))
        if rank in damaged:
            path.write_bytes(path.read_bytes()[:40])
    return diagnose(load_trace([folder]))


def test_who_left_nothing_at_all_is_the_lost_one(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, gone={2}, damaged={4})
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.RANK_LOST, (2,))


def test_a_damaged_dump_is_not_called_a_missing_one(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, gone=set(), damaged={4})
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.RANK_LOST, (4,))
    assert "cannot be read" in diagnosis.summary
    assert "no sign of life" not in diagnosis.summary


@pytest.mark.parametrize(
    ("damaged", "lists", "expected"),
    [(set(), True, "certain"), ({5}, True, "likely"), ({5}, False, "likely")],
)
def test_a_majority_among_those_that_can_be_read_is_not_certain(
    tmp_path: Path, damaged: set[int], lists: bool, expected: str
) -> None:
    odd = {0, 1}
    for rank in range(6):
        size = [[7]] if rank in odd else [[4096]]
        last = pending(2, input_sizes=size, output_sizes=size)
        changes = {} if lists else {"pg_config": None}
        path = write(tmp_path, f"trace_rank_{rank}", dump([entry(1), last], world=6, **changes))
        if rank in damaged:
            path.write_bytes(b"")
    diagnosis = diagnose(load_trace([tmp_path]))
    assert (diagnosis.verdict, set(diagnosis.culprits)) == (Verdict.SHAPE_MISMATCH, odd)
    assert diagnosis.confidence.value == expected
