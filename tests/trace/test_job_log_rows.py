"""Every kind of line is read alone, in any company and behind every prefix."""

from __future__ import annotations

import io
import re
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.lines.line_shapes import shape_of
from hangscope.trace.job_log.read import read_job_log
from hangscope.trace.job_log.readers import registry
from hangscope.trace.job_log.readers.registry import Reader, Readers
from hangscope.trace.job_log.rows.literals import literals_of, shortest
from hangscope.trace.job_log.rows.row import STATEMENTS, Report, Row, row
from hangscope.trace.job_log.rows.table import ROWS
from tests.depth import examples
from tests.trace.logs import trace_of
from tools import log_lines

EXAMPLES = [(known, example) for known in ROWS for example in known.examples]
LOOKED_FOR = [(known, example) for known, example in EXAMPLES if not known.passing]
PREFIXES = (
    "", "[rank3]: ", "[rank3]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp:629] ", "[default0]:",
    "[rank12]:[E ProcessGroupNCCL.cpp:458] ", "2025-11-21 10:00:00,123 ", "[trainer1|3]:",
    "E1121 10:11:12.123456 1234 torch/distributed/elastic/agent/server/api.py:869] ",
    "(Worker pid=77, ip=10.0.0.7) ", "[pod/train-0/pytorch] ", "[1,2]<stderr>:", "[RANK 4] ",
    "2025-11-21T10:00:00.123456789Z stderr F ", "\x1b[36m(Actor pid=5)\x1b[0m ", "> ",
)  # fmt: skip
COMPANY = (
    "step 100 loss 2.345 lr 1e-05", "", "Epoch 3:  61%| 12/20 [00:03<00:02]",
    "/usr/lib/python3/checkpoint.py:61: UserWarning: None of the inputs requires grad",
    "NCCL version 2.21.5+cuda12.4", "2026-11-21 10:00:00,123 [INFO] tokens/s=12",
)  # fmt: skip


def _id(value: object) -> str:
    return value.id if isinstance(value, Row) else ""


@pytest.mark.parametrize(("known", "example"), EXAMPLES, ids=_id)
def test_example_is_of_its_row(known: Row, example: str) -> None:
    assert known.line.search(example)
    assert any(literal in shape_of(example) for literal in known.literals)


def rows_that_read(text: str) -> set[str]:
    """Which rows understand a line of this log, reading it as the command does."""
    told: set[str] = set()

    def recording(known: Row) -> Reader:
        reader = registry._reader_of(known)

        def read(line: LogLine, attempt: Attempt) -> bool | Report | None:
            if known.line.search(line.text):
                told.add(known.id)
            return reader.read(line, attempt)

        return reader._replace(read=read)

    with patch.object(registry, "_OF_ROWS", tuple(map(recording, ROWS))):
        read_job_log(io.BytesIO(text.encode()), path="job.log", year=2026)
    return told


@pytest.mark.parametrize(("known", "said"), LOOKED_FOR, ids=_id)
@example(prefix="", above=[], below=[])
@settings(max_examples=examples(40))
@given(
    prefix=st.sampled_from(PREFIXES),
    above=st.lists(st.sampled_from(COMPANY), max_size=30),
    below=st.lists(st.sampled_from(COMPANY), max_size=3),
)
def test_example_reaches_its_row_in_any_company_and_behind_every_prefix(
    known: Row, said: str, prefix: str, above: list[str], below: list[str]
) -> None:
    assert known.id in rows_that_read("\n".join([*above, prefix + said, *below]))


def test_line_is_offered_to_every_row_that_may_know_it() -> None:
    readers = Readers(2025)._all
    for known, said in EXAMPLES:
        place = len(readers) - len(ROWS) + ROWS.index(known)
        assert readers[place].may_know(shape_of(said)), known.id


def test_line_counts_whether_or_not_others_do() -> None:
    alone = trace_of("rank 3: found nan in local grad norm, aborting step\n")
    assert [(c.kind, c.accused) for c in alone.claims] == [("nan", (3,))]


def test_rows_are_told_apart() -> None:
    assert len({known.id for known in ROWS}) == len(ROWS) > 80
    assert {known.states for known in ROWS} == set(STATEMENTS)
    assert all(len(literal) > 3 for known in ROWS for literal in known.literals)


@pytest.mark.parametrize(
    ("expression", "literals"),
    [
        (r"rank (\d+) failed in (\d+) ms", (" failed in ",)),
        (r"a[Bb]cdef|xyz+zyx", ("cdef", "zyx")),
        (r"(?:abc|de+f)?ghi", ("ghi",)),
        (r"exit 127", ("exit 000",)),
        (r'say "quoted words" here', ("quoted words",)),
        (r"\d+|abc", ()),
        (r"(?i)abc", ()),
        (r"(?:kilo|mega){2,3}", ("kilo", "mega")),
    ],
)
def test_literals_follow_from_an_expression(expression: str, literals: tuple[str, ...]) -> None:
    assert set(literals_of(re.compile(expression))) == set(literals)


def test_text_that_contains_another_is_not_looked_for() -> None:
    assert shortest(["abcd", "bc", "xbcy", "efg"]) == ("bc", "efg")


def test_row_that_would_be_tried_on_every_line_is_refused() -> None:
    with pytest.raises(ValueError, match="row broad"):
        row("broad", "remark", r"\d+ \w+", lambda said, evidence: None)


def test_page_lists_every_row() -> None:
    assert log_lines.PAGE.read_text() == log_lines.page()
