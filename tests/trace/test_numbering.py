"""Where a report's numbers are not those of the dumps, it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.trace.load import load_trace
from tests.trace.dumps import dump, entry, pending, write

FROM_ZERO = "numbers the collectives of each group from 0: what is #10 in this report is number 9"


@pytest.mark.parametrize(("world", "lines"), [(2, 2), (5, 1)])
def test_numbers_that_begin_at_zero_are_noted(world: int, lines: int, tmp_path: Path) -> None:
    """Of many files with the same note only the first is named."""
    for rank in range(world):
        write(tmp_path, f"rank_{rank}", dump([entry(0), entry(1), pending(2)]))
    trace = load_trace([tmp_path])
    assert sorted(set(trace.records["collective_seq"].tolist())) == [1, 2, 3]
    noted = [line for line in trace.warnings if FROM_ZERO in line]
    assert len(noted) == lines
    assert ("and 4 more" in noted[0]) == (lines == 1)


def test_numbers_that_begin_at_one_need_no_note(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path, f"rank_{rank}", dump([entry(1), entry(2), pending(3)]))
    assert not load_trace([tmp_path]).warnings


def test_numbers_common_to_all_groups_are_noted(tmp_path: Path) -> None:
    groups = {name: {"name": name, "desc": name, "ranks": "[0, 1]"} for name in ("a", "b")}
    for rank in range(2):
        entries = [
            entry(number, record_id=number, process_group=("ab"[number % 2], "x"))
            for number in range(6)
        ]
        write(tmp_path, f"rank_{rank}", dump(entries, pg_config=groups, pg_status={}))
    trace = load_trace([tmp_path])
    assert trace.records["collective_seq"].tolist() == [1, 1, 2, 2, 3, 3] * 2
    assert all("numbers the operations of all groups together" in w for w in trace.warnings)
    assert len(trace.warnings) == 2
