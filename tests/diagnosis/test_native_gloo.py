"""Dumps of Gloo's own recorder: no completions, no sends and receives."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import Flag, Phase
from tests.diagnosis.builder import Job


def _job(waiting: tuple[int, ...]) -> Job:
    job = Job(4)
    for _ in range(6):
        job.all(done=False, flags=Flag.UNOBSERVED)
    for rank in waiting:
        job.op(rank, done=False, flags=Flag.UNOBSERVED)
    return job


@pytest.mark.parametrize(
    ("waiting", "culprits", "confidence"),
    [((0, 1, 3), (2,), "likely"), ((0, 1), (2, 3), "ambiguous")],
)
def test_absent_rank_may_wait_in_an_unrecorded_receive(
    waiting: tuple[int, ...], culprits: tuple[int, ...], confidence: str
) -> None:
    found = diagnose(_job(waiting).trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", culprits)
    assert found.confidence.value == confidence
    assert any("sends and receives" in unknown for unknown in found.findings[0].unknowns)


def test_process_state_makes_the_answer_certain() -> None:
    job = _job((0, 1, 3))
    for rank in range(4):
        job.rank(rank, alive=True, process_state="sleeping")
    job.rank(2, phases=(Phase("checkpoint"),))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "certain"
