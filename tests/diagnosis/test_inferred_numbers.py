"""Collectives without a number: a wrapped ring with one counter for all groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.load import load_trace
from tests.trace.dumps import BASE_NS, dump, entry, write

MS = 10**6
WORLD, KEPT = 4, 24
STEPS = 12


def _judged(folder: Path, cut: dict[int, int], stuck: int | None = None) -> Diagnosis:
    """Steps of an all-gather in pairs and two operations of all; ``cut`` ends a rank's program.

    Ranks 2 and 3 meet once more a step than 0 and 1, so that no two numbers agree.
    """
    for rank in range(WORLD):
        pair, rows = (0, 1) if rank < 2 else (2, 3), []
        plan: list[tuple[str, str, int]] = []
        for _ in range(STEPS):
            plan += [("tp", "all_gather_single", 64)] * (1 if rank < 2 else 2)
            plan += [("world", "reduce_scatter_single", 512), ("world", "all_reduce", 1)]
        last = len(plan) - cut.get(rank, 0)
        for number, (group, op, size) in enumerate(plan[:last]):
            # A step takes a second; its operations follow each other by milliseconds.
            step = sum(op == "all_reduce" for _, op, _ in plan[:number])
            at = BASE_NS + step * 1000 * MS + number * MS + rank
            over = number < len(plan) - 1 and not (rank == stuck and number >= len(plan) - 2)
            made: dict[str, Any] = {
                "record_id": number,
                "op_id": number,
                "process_group": (group, "ncclx"),
                "pg_id": int(group == "tp"),
                "time_created_ns": at,
                "input_sizes": [[size]],
                "output_sizes": [[size]],
                "state": "started",
                "time_discovered_completed_ns": None,
                "retired": over,
                "duration_ms": 3.0 if over else None,
            }
            rows.append(entry(number, f"ncclx:{op}", **made))
        config = {
            "world": {"name": "world", "desc": "ncclx", "ranks": "[0,1,2,3]"},
            "tp": {"name": "tp", "desc": "ncclx", "ranks": str(list(pair))},
        }
        path = write(folder, f"rank_{rank}", dump(rows[-KEPT:], pg_config=config, pg_status={}))
        os.utime(path, ns=(BASE_NS + 700 * 10**9,) * 2)
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize("rank", range(WORLD))
def test_rank_that_issued_less_is_missing(tmp_path: Path, rank: int) -> None:
    found = _judged(tmp_path, {rank: 1})
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (rank,))
    assert found.confidence is Confidence.LIKELY


def test_times_show_what_a_device_did_not_complete(tmp_path: Path) -> None:
    """Rank 3 lists what all others have completed: aligned by completions alone, it would be one
    off."""
    found = _judged(tmp_path, {}, stuck=3)
    assert found.culprits in ((), (3,))
    assert found.confidence is not Confidence.CERTAIN


def test_unfinished_entries_without_number_are_no_remainder(tmp_path: Path) -> None:
    """A single dump: nothing to align it with."""
    _judged(tmp_path, {})
    for rank in (1, 2, 3):
        (tmp_path / f"rank_{rank}").unlink()
    assert diagnose(load_trace([tmp_path])).verdict is not Verdict.QUIESCENT
