"""Results cached per line shape hold for every line of that shape."""

from __future__ import annotations

import io
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from hangscope.trace.job_log.lines import blocks, fast_path, line_shapes, stream
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers import elastic_table, ras, stacks
from hangscope.trace.job_log.readers.registry import Reader, telling_words
from hangscope.trace.job_log.rows.row import Row
from hangscope.trace.job_log.rows.table import ROWS
from hangscope.trace.load import load_trace
from hangscope.trace.loading import parallel, reading
from tests.depth import examples
from tests.trace.logs import timeout

PIECES = [
    "[rank3]:", "[rank12]: ", "[default7]:", "[trainer1|3]:", "[Rank 3] ", "[RANK 4] ", "12: ",
    "[5] ", "node-1: ", "(Worker pid=77, ip=10.0.0.7) ", "[pod/train-0/pytorch] ", "> ",
    "2025-11-21T10:00:00.123456789Z stderr F ", "2025-11-21 10:00:00,123 ", "[1,2]<stderr>:",
    "[E1121 10:11:12.123456789 ProcessGroupNCCL.cpp:632] ", "[E ProcessGroupNCCL.cpp:821] ",
    "W1121 10:11:12.123456 1234 torch/distributed/run.py:793] ", "[rank3[]:[E", "Traceback ",
    "Watchdog caught collective operation timeout: ", "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, ",
    "NumelIn=1, NumelOut=1, Timeout(ms)=600000)", " ran for 600030 milliseconds before timing out.",
    "frame #3: c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 (0x7f1234abcdef in /x/libc.so)",
    "comm 0x55aabbccddee rank 3 nranks 8 ", "step 100 loss 2.345 lr 1e-05", "] ", ": ", "[", "7",
    "\r", "\t", "\x1b[31m", "&gt;", "é", " [repeated 3x across cluster]", "  ", "0xdead", "abc",
]  # fmt: skip
LINES = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)
LOGS = st.lists(LINES, min_size=1, max_size=12).map("\n".join)

EXAMPLES = 4
"""Of every pattern: most are slow to make up, and one that lacks its word shows at once."""


def _with_shapes(raw: bytes) -> list[LogLine]:
    return list(stream.read_lines(io.BytesIO(raw), telling_words(), 2025))


def _with_care(raw: bytes) -> list[LogLine]:
    with patch.object(fast_path.FastPath, "line", lambda *_: None):
        return list(stream.read_lines(io.BytesIO(raw), telling_words(), 2025))


@settings(max_examples=examples(150))
@example(
    "[1,2]<stderr>:[E1121 10:11:12.123456789 ProcessGroupNCCL.cpp:632] [1,2]<stderr>:[default7]:"
)
@given(LOGS)
def test_plain_line_is_read_like_a_checked_one(text: str) -> None:
    raw = ("Watchdog of a job\n" + text).encode()
    quick, careful = _with_shapes(raw), _with_care(raw)
    assert [line._replace(shape="") for line in quick] == careful
    for line in quick:
        assert not line.shape or len(line.shape) == len(line.text)


@settings(max_examples=examples(100))
@given(LINES)
def test_every_byte_of_a_shape_keeps_its_place(text: str) -> None:
    raw = text.encode()
    shape = line_shapes.shape_of_bytes(raw)
    assert len(shape) == len(raw)
    assert all(a == b or chr(b) == "0" for a, b in zip(raw, shape, strict=True))
    assert line_shapes.shape_of_bytes(shape) == shape
    assert line_shapes.shape_of(text) == shape.decode()


def test_different_numbers_have_the_same_shape() -> None:
    one, other = timeout(11, 104), timeout(38, 977)
    assert one != other
    assert line_shapes.shape_of(one) == line_shapes.shape_of(other)


@pytest.mark.parametrize("known", ROWS, ids=lambda known: known.id)
def test_line_not_shown_to_a_row_is_not_matched_by_it(known: Row) -> None:
    reader = Reader(lambda *_: False, known.literals)

    @settings(max_examples=examples(EXAMPLES), database=None, phases=[Phase.generate])
    @given(st.from_regex(known.line))
    def check(text: str) -> None:
        assert reader.may_know(line_shapes.shape_of(text)), text

    check()


def test_words_contain_no_digit_but_zero() -> None:
    words = [word.decode() for word in telling_words()]
    assert len(words) > 100
    assert all(line_shapes.shape_of(word) == word for word in words)
    forms = [form.pattern for form in (elastic_table.FORM, ras.FORM, stacks.FORM)]
    assert not any(re.search(r"(?<![{,\d])[1-9](?![,}\d])", form) for form in forms), forms


def test_cache_of_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_shapes, "_MOST_BYTES", 10_000)
    asked = []
    remembered = line_shapes.ShapeCache[str, int](lambda shape: asked.append(shape) or len(shape))
    for n in range(2000):
        assert remembered["x" * (n % 500)] == n % 500
        assert len(remembered) <= 10_000 // 400 + 1
    assert remembered["y" * 5000] == 5000
    assert "y" * 5000 not in remembered
    before = len(asked)
    assert remembered["x" * (1999 % 500)] == 1999 % 500
    assert len(asked) == before


def test_prefixes_that_never_recur_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "_MOST_PREFIXES", 50)
    raw = "".join(f"[rank{n}]: Error: {n}\n" for n in range(1000, 3000)).encode()
    found = _with_shapes(raw)
    assert [line.rank for line in found] == list(range(1000, 3000))


def test_word_may_follow_a_carriage_return() -> None:
    raw = b"step 1\rstep 2\rTraceback (most recent call last):\r\nnext\n"
    told = list(blocks.relevant_lines(raw, io.BytesIO(b""), telling_words()))
    assert next(number for number, _, _ in told) == 1


def test_stacks_are_found_by_their_formats() -> None:
    reader = Reader(lambda *_: False, form=stacks.FORM)
    known = [
        "Process 417: python train.py --rank 3", 'Thread 0x7f1234567890 (idle): "MainThread"',
        "Current thread 0x00007f12 (most recent call first):", "=== Rank 3: node1 ===",
        "<h2>Rank 3: node1</h2>", "## rank 3", "#0  0x00007f in wait () from libc.so.6",
        '    (C) File "???", line 0, in ncclAllReduce (libnccl.so.2)',
    ]  # fmt: skip
    assert all(reader.may_know(line_shapes.shape_of(text)) for text in known)
    assert not reader.may_know("frame #0: c10d::ProcessGroupNCCL::watchdogHandler()")


@pytest.mark.long
def test_slow_log_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_PROGRESS_INTERVAL_S", 0.001)
    monkeypatch.setattr(reading, "_WORTH_WORKERS", 0)  # even a short one has a worker
    (tmp_path / "job.log").write_text("".join(timeout(n % 64, 7) for n in range(1_000)))
    calls: list[tuple[int, int]] = []
    load_trace([tmp_path], progress=lambda done, found: calls.append((done, found)))
    assert calls[-1] == (1, 1)
    assert calls[0] == (0, 1)
