"""Logs copied from a terminal that wrapped their lines."""

from __future__ import annotations

import io

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.job_log.lines.stream import read_lines
from hangscope.trace.job_log.lines.wrapped import wrap_width
from hangscope.trace.job_log.readers.registry import telling_words

from .logs import counters, overdue, timeout, trace_of

BAR = " 45%|####5     | 45/100 [10:11<12:13,  3.38s/it]"


@pytest.mark.parametrize("width", [48, 62, 63, 64, 69, 80, 81, 100, 132, 133, 160])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("before", ["", BAR])
def test_message_is_read_wherever_it_was_wrapped(width: int, padded: bool, before: str) -> None:
    lines = [before + timeout(0, 55), timeout(1, 55)]
    pieces = []
    for line in "".join(lines).splitlines():
        for at in range(0, len(line), width):
            piece = line[at : at + width]
            pieces.append(piece.ljust(width) if padded else piece.rstrip())
    trace = trace_of("world_size=2\n" + "\n".join(pieces) + "\n")
    assert overdue(trace) == [(0, "0", "all_reduce", 55), (1, "0", "all_reduce", 55)]
    assert set(counters(trace).values()) == {(55, 54)}
    assert diagnose(trace).verdict is Verdict.STUCK_COLLECTIVE


def test_lines_of_equal_length_are_no_wrapped_messages() -> None:
    assert wrap_width(b"=" * 60 + b"\ntrain.py FAILED\n" + b"=" * 60 + b"\n" + b"-" * 60) == 0
    assert wrap_width(timeout(0, 5).encode()) == 0


def test_line_after_messages_of_equal_length_is_separate() -> None:
    """All ranks print lines of the same length, which is not the width of a terminal."""
    lines = "".join(timeout(rank, 9) for rank in (0, 1, 3)).splitlines()
    for last in (lines, lines[:-1]):
        text = "\n".join([*last, "oom-kill: a line that begins like no other"]) + "\n"
        *_, before, after = read_lines(io.BytesIO(text.encode()), telling_words(), 2025)
        assert before.text.endswith(last[-1][-30:])
        assert after.text.startswith("oom-kill")
