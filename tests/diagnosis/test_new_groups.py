"""Ranks that wait in ``new_group``: who creates a different number of groups?"""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import Frame, Phase, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job


def _stack(line: int) -> tuple[ThreadStack, ...]:
    frames = (
        Frame("new_group", "/site-packages/torch/distributed/distributed_c10d.py", 5863),
        Frame("make_groups", "/home/me/train.py", line),
    )
    return (ThreadStack("MainThread", True, frames, START + SECOND),)


def _judged(details: list[str]) -> Diagnosis:
    job = Job(len(details), live=True)
    job.steps(3)
    for rank, detail in enumerate(details):
        phases = (Phase("new_group", START + SECOND, detail),)
        job.rank(rank, phases=phases, threads=_stack(8 + rank // 3))
        job.rank(rank, observed_ns=START + 60 * SECOND)
    return diagnose(job.trace())


def test_rank_in_another_new_group_call_skipped_one() -> None:
    found = _judged(["call 2, ranks 0,1,2,3"] * 3 + ["call 1, ranks 0,1,2,3"])
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (3,))
    first = found.findings[0]
    assert "call 1 of new_group is for ranks 0–3 on rank 3 and for others on" in first.summary
    assert "on ranks that are not members" in first.fix
    assert [side.stack[0].line for side in first.sides] == [8, 9]
    assert first.began_ns == START + SECOND


@pytest.mark.parametrize("details", [["call 2"] * 4, ["", "call 1", "call 1", "call 2"]])
def test_equal_new_group_numbers_accuse_no_rank(details: list[str]) -> None:
    found = _judged(details)
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())


def _alone(lines: list[int]) -> Diagnosis:
    """The last rank is in ``new_group``, the others run their own code at these lines."""
    job = Job(len(lines) + 1, live=True)
    job.steps(3)
    for rank, line in enumerate(lines):
        frames = (Frame("make_groups", "/home/me/train.py", line),)
        job.rank(rank, threads=(ThreadStack("MainThread", True, frames, START + SECOND),))
    waiting = len(lines)
    phases = (Phase("new_group", START + SECOND, "call 3, ranks 0,1,2,3"),)
    job.rank(waiting, phases=phases, threads=_stack(8))
    for rank in range(waiting + 1):
        job.rank(rank, observed_ns=START + 60 * SECOND)
    return diagnose(job.trace())


def test_rank_in_new_group_that_all_others_are_past_makes_one_more() -> None:
    found = _alone([9, 9, 9])
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (3,))
    assert found.confidence.value == "likely"
    assert "Rank 3 alone is in new_group" in found.headline


@pytest.mark.parametrize("lines", [[7, 7, 7], [9, 9, 7], [9]])
def test_ranks_that_may_still_come_to_new_group_are_missing(lines: list[int]) -> None:
    found = _alone(lines)
    assert (found.verdict.value, found.culprits) == ("missing_rank", tuple(range(len(lines))))
