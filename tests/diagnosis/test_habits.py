"""What a rank always did: the lines at which it waits, and the steps between collectives."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.pattern.habits import waits_at_new_line
from hangscope.diagnosis.pattern.step_deviations import skipped_step
from tests.diagnosis.builder import Job, context_of


@pytest.mark.parametrize(
    ("line", "dtype", "recorded", "is_new"),
    [
        (50, "Float", True, False),
        (60, "Float", True, True),
        (50, "Half", True, False),
        (60, "Float", False, False),
        (60, "Half", False, True),
    ],
)
def test_line_is_new_by_itself_or_where_none_is_recorded_by_its_tensors(
    line: int, dtype: str, *, recorded: bool, is_new: bool
) -> None:
    job = Job(2)
    for _ in range(3):
        job.op(0, "recv", peer=1, line=50)
        job.op(1, "send", peer=0, line=70)
        job.all()
    job.op(0, "recv", peer=1, line=line, dtype=dtype, done=False)
    trace = job.trace()
    if not recorded:
        trace.records["stack"] = -1
    assert waits_at_new_line(context_of(trace), 0) is is_new


def test_first_receive_of_a_rank_is_at_no_new_line() -> None:
    job = Job(2)
    job.steps(3)
    job.op(0, "recv", peer=1, done=False)
    assert not waits_at_new_line(context_of(job.trace()), 0)


def _steps(*steps: str) -> Job:
    """Rank 0 issues ``a`` and ``b`` in its pair with rank 1; ``|`` is a collective of all."""
    job = Job(3)
    pair = job.group(0, 1)
    for letter in "".join(steps):
        if letter == "|":
            job.op(0, line=9)
        else:
            job.op(0, group=pair, line={"a": 1, "b": 2}[letter])
    return job


@pytest.mark.parametrize(
    ("steps", "skipped"),
    [
        ("ab|ab|ab|ab|", False),
        ("ab|ab|abab|ab|", True),  # left out the collective once
        ("ab|ab||ab|ab|", True),  # issued it twice
        ("ab|abab|ab|abab|ab|", False),  # does so again and again
        ("ab|abab|", False),  # too few steps to tell which is usual
        ("ab|ab|abab|abab|", False),  # two ways are equally usual
    ],
)
def test_step_is_skipped_if_it_once_lacks_the_collective_that_ends_it(
    steps: str, *, skipped: bool
) -> None:
    assert skipped_step(context_of(_steps(steps).trace()), 0, [1, 2]) is skipped
