"""Dumps that are there and cannot be read: their ranks lived to write them."""

from __future__ import annotations

from pathlib import Path

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
