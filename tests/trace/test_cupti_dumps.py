"""Dumps made from profiler events: one row of counters for all groups, numbers that may be 0."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.load import load_trace
from tests.trace.dumps import BASE_NS, dump, entry, pending, write

MILLISECOND = 10**6
WORLD = 4
GROUPS = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
STEPS = 5

Document = dict[str, Any]


def _groups(rank: int, skipped: int | None) -> list[str]:
    """The groups in whose collectives a rank takes part, in order; all come together at the end."""
    tensor, data = ("1" if rank < 2 else "2"), ("3" if rank % 2 == 0 else "4")
    steps = ([tensor] * 4 + [data] * (step != skipped) for step in range(STEPS))
    return [*itertools.chain.from_iterable(steps), "0"]


def _document(rank: int, groups: list[str], unfinished: int) -> Document:
    counted: dict[str, int] = {}
    rows = []
    for number, group in enumerate(groups):
        counted[group] = counted.get(group, 0) + 1
        over = number < len(groups) - unfinished
        rows.append(
            (entry if over else pending)(
                counted[group],
                record_id=number,
                pg_id=0,
                process_group=[group, ""],
                time_created_ns=BASE_NS + number * MILLISECOND,
            )
        )
    highest = max(counted.values())
    counters = {"last_enqueued_collective": highest, "last_completed_collective": highest}
    config = {name: {"name": name, "desc": "", "ranks": str(GROUPS[name])} for name in counted}
    return dump(rows, pg_config=config, pg_status={"0": counters})


def _as_it_is(document: Document) -> None:
    """Numbers of each group of its own."""


def _without_numbers(document: Document) -> None:
    for row in document["entries"]:
        row["collective_seq_id"] = 0
    document["pg_status"]["0"] = dict.fromkeys(document["pg_status"]["0"], 0)


def _one_number_for_all(document: Document) -> None:
    for row in document["entries"]:
        row["collective_seq_id"] = row["record_id"]
    newest = len(document["entries"]) - 1
    document["pg_status"]["0"] = dict.fromkeys(document["pg_status"]["0"], newest)


@pytest.mark.parametrize("number", [_as_it_is, _without_numbers, _one_number_for_all])
@pytest.mark.parametrize("rank", [1, 2])
def test_single_row_of_counters_has_no_group(
    tmp_path: Path, rank: int, number: Callable[[Document], None]
) -> None:
    """A rank skips one collective with its partner, which waits for it in the last of theirs."""
    partner = {1: 3, 2: 0}[rank]
    for member in range(WORLD):
        groups = _groups(member, skipped=2 if member == rank else None)
        groups = groups[:-1] if member == partner else groups  # it does not come to the end
        document = _document(member, groups, unfinished=1)
        number(document)
        write(tmp_path, f"comm_lib_trace_rank_{member}", document)
    trace = load_trace([tmp_path])
    whole = {g.name: i for i, g in enumerate(trace.groups)}["0"]
    counters = trace.members[trace.members["group"] == whole]
    assert counters["enqueued"].tolist() == [1, 1, 1]
    assert counters["completed"].max() <= 0
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (rank,))


def test_row_of_a_single_group_belongs_to_it(tmp_path: Path) -> None:
    for member in range(WORLD):
        document = _document(member, ["0"] * (3 if member == 2 else 4), unfinished=0)
        write(tmp_path, f"comm_lib_trace_rank_{member}", document)
    trace = load_trace([tmp_path])
    assert trace.members["enqueued"].tolist() == [4, 4, 3, 4]


def test_numbers_are_not_counted_without_the_first_records(tmp_path: Path) -> None:
    """The remaining records of two ranks begin at different places, so the place is no number."""
    for member, left in ((0, 9), (1, 5), (2, 9), (3, 9)):
        document = _document(member, ["0"] * 12, unfinished=1)
        _without_numbers(document)
        document["entries"] = document["entries"][-left:]
        write(tmp_path, f"comm_lib_trace_rank_{member}", document)
    assert not load_trace([tmp_path]).records["collective_seq"].any()
