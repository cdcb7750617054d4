"""The exception a rank was handling when it diverged from the others."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Finding
from hangscope.trace.model import ExceptionFacts, Flag, Frame
from tests.diagnosis.builder import NO_FLAG, SECOND, START, Job

RAISED = (Frame("load", "/home/me/data.py", 41),)


def parted(
    *,
    kind: str = "ValueError",
    message: str = "corrupt sample 4711",
    late_s: float = 0.0,
    others: Flag = NO_FLAG,
) -> Finding:
    """Rank 1 goes to a barrier while it handles something, the others to the next step."""
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False, flags=others)
    job.op(1, "barrier", done=False, flags=Flag.HANDLING, line=99)
    at_ns = START + int((job.now + late_s) * SECOND)
    job.rank(1, handled=ExceptionFacts(kind, message, RAISED, at_ns))
    (finding,) = diagnose(job.trace()).findings
    assert finding.culprits == (1,)
    return finding


def test_handled_exception_is_reported_with_advice() -> None:
    finding = parted()
    told = "ValueError: corrupt sample 4711, raised at data.py:41 in load"
    assert f"rank 1: it issued that while handling {told}" in finding.evidence
    assert finding.fix.startswith(f"fix what raised {told}")
    assert finding.playbook == "D20, D19"


def test_end_of_an_iterator_is_no_failure() -> None:
    finding = parted(kind="StopIteration", message="")
    assert "equalise" in finding.fix
    assert any("handling StopIteration, raised at" in line for line in finding.evidence)


@pytest.mark.parametrize(
    "how",
    [
        {"late_s": 5.0},
        {"others": Flag.HANDLING},
        {"message": "Connection closed by peer [10.0.0.2]:29500"},
    ],
    ids=["of_a_later_operation", "all_handle_something", "of_a_wait_that_failed"],
)
def test_unrelated_handled_exception_is_not_reported(how: dict[str, object]) -> None:
    finding = parted(**how)  # type: ignore[arg-type]
    assert "fix what raised" not in finding.fix
    assert not any("handling" in line for line in finding.evidence)


def test_in_a_cycle_the_operation_it_waits_in_counts() -> None:
    job = Job(4, live=True)
    pair = job.group(1, 2, desc="pair")
    job.steps(3)
    job.all(group=pair)
    for rank in (0, 2, 3):
        job.op(rank, done=False)
    job.op(1, "barrier", group=pair, done=False, flags=Flag.HANDLING, line=99)
    job.rank(1, handled=ExceptionFacts("KeyError", "'x'", RAISED, START))
    (finding,) = diagnose(job.trace()).findings
    assert finding.culprits == (1, 2), "nothing else decides between them"
    assert finding.fix.startswith("fix what raised KeyError: 'x'")
