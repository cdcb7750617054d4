"""Logs designed to be expensive: a few characters that expand to a lot, repeated often."""

from __future__ import annotations

import time

import pytest

from hangscope.trace.job_log.evidence import attempt as evidence
from hangscope.trace.job_log.evidence.attempt import rank_ranges
from hangscope.trace.job_log.evidence.notes import MAX_SAME_NUMBER
from hangscope.trace.job_log.lines.stream import MAX_LINE
from hangscope.trace.model import MAX_RANK
from tests.trace.logs import overdue, timeout, trace_of

SECONDS = 10.0
"""Far more than needed on any machine, far less than what the square of the lines would take."""


def _cost_s(text: str) -> float:
    began_s = time.process_time()
    trace_of(text)
    return time.process_time() - began_s


@pytest.mark.long
def test_many_overdue_operations_of_one_rank() -> None:
    text = "".join(timeout(3, seq) for seq in range(1, 8_001))
    assert _cost_s(text) < SECONDS


def test_many_overdue_operations_of_one_number() -> None:
    names = [f"OP{chr(65 + i // 26)}{chr(65 + i % 26)}" for i in range(200)]
    found = overdue(trace_of("".join(timeout(3, 7, name) for name in names)))
    assert len(found) == MAX_SAME_NUMBER


def test_lists_of_ranks_larger_than_any_job() -> None:
    assert rank_ranges("0, 2, 5-7, ...") == (0, 2, 5, 6, 7)
    assert rank_ranges("0-9999999") == ()
    assert len(rank_ranges("0-131071," * 500)) <= 2 * (MAX_RANK + 1)


def test_repeated_reports_about_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangscope.trace.job_log.rows.comparisons.MAX_MENTIONS", 1000)
    head = "[rank0]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp:1] "
    lines = [f"{head}[0-99999] joined but didn't finish collective #{n}\n" for n in range(1, 50)]
    evidence_of = trace_of("".join(lines))
    assert len(evidence_of.members) == 1000
    assert evidence.MAX_MENTIONS > 64 * 8192  # reports of a large job are read


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "n1:1:1 [0] NCCL INFO AllReduce: opCount 1 " + "x count 1 datatype 1 " * 2000,
        "n1:1:1 [0] NCCL INFO " + "comm 0x1 rank 1 nranks 2 " * 2000,
        "E1121 10:00:00.000000 7 api.py:1] " + "failed (exitcode: 1) for binary located at " * 900,
    ],
    ids=["an announcement", "a communicator", "a failure"],
)
def test_lines_with_repeated_beginnings(line: str) -> None:
    assert len(line) > MAX_LINE
    assert _cost_s(f"{line}\n" * 40) < SECONDS
