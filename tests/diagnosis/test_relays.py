"""A member that has ended or is stopped passes nothing on, whether or not it finished its part."""

from __future__ import annotations

from typing import Any

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import ExitFacts
from tests.diagnosis.builder import SECOND, START, Job

EXITED = {"alive": False, "exit": ExitFacts("clean", code=0, at_ns=START + SECOND)}
KILLED = {"alive": False, "exit": ExitFacts("signal", signal=9, at_ns=START + SECOND)}
STOPPED = {"process_state": "stopped", "heartbeat_ns": START + SECOND // 100}


def four_ranks(*, live: bool = True, finished: tuple[int, ...] = (0, 2)) -> Job:
    """Only some members have finished the newest collective of all. Rank 0 then waits for rank 2 in
    a group of the two, and hosts of a device backend run ahead."""
    job = Job(4, live=live)
    pair = job.group(0, 2, desc="dp")
    job.steps(5)
    for rank in range(4):
        job.op(rank, done=rank in finished)
    job.op(0, group=pair, done=False)
    return job


def found_in(job: Job) -> list[tuple[Verdict, tuple[int, ...]]]:
    return [(f.verdict, f.culprits) for f in diagnose(job.trace()).findings]


@pytest.mark.parametrize("finished", [(0, 2), (0,), ()])
@pytest.mark.parametrize(
    ("end", "verdict"), [(EXITED, Verdict.RANK_EXITED), (KILLED, Verdict.RANK_CRASHED)]
)
def test_rank_that_ended_holds_up_those_behind_it(
    end: dict[str, Any], verdict: Verdict, finished: tuple[int, ...]
) -> None:
    """As recorded on NCCL: ranks 1 and 3 hang in what rank 2 had finished before it exited."""
    job = four_ranks(finished=finished)
    job.rank(2, **end)
    assert found_in(job) == [(verdict, (2,))]
    assert "device" not in diagnose(job.trace()).findings[0].why


@pytest.mark.parametrize("finished", [(0, 2), (0,), ()])
def test_stopped_rank_holds_up_those_behind_it(finished: tuple[int, ...]) -> None:
    job = four_ranks(finished=finished)
    job.rank(2, **STOPPED)
    assert found_in(job) == [(Verdict.STUCK_COLLECTIVE, (2,))]


def test_rank_without_a_dump_may_be_gone() -> None:
    """It had issued what rank 0 has finished; two devices that break at once are less likely."""
    job = four_ranks(live=False, finished=(0,))
    job.lose(2)
    assert found_in(job)[0] == (Verdict.RANK_LOST, (2,))


def test_one_device_that_hangs_alone_beside_a_missing_dump() -> None:
    """Either it is stuck, or the member that left nothing passes nothing on to it."""
    job = Job(5)
    job.steps(5)
    for rank in range(5):
        job.op(rank, done=rank != 1)
    for rank in range(5):
        job.op(rank, done=False)
    job.lose(4)
    assert found_in(job)[0] == (Verdict.STUCK_COLLECTIVE, (1, 4))
    assert diagnose(job.trace()).confidence is Confidence.AMBIGUOUS


def test_whoever_was_ended_by_the_launcher_explains_nothing() -> None:
    job = four_ranks(finished=(0,))
    job.rank(2, alive=False, exit=ExitFacts("signal", signal=15, at_ns=START + 40 * SECOND))
    assert (Verdict.STUCK_COLLECTIVE, (2,)) not in found_in(job)
    assert (Verdict.RANK_CRASHED, (2,)) not in found_in(job)


@pytest.mark.parametrize("lived_s", [0.0, 30.0])
def test_rank_whose_recorder_ran_on_would_have_noted_the_end(lived_s: float) -> None:
    """All processes are gone by the time somebody looks. Rank 1 recorded no end of what ranks 0 and
    2 have finished: either it had no time to note it, or it stood there until it was killed."""
    job = four_ranks(live=False)
    job.op(0, group=job.group(0, 1, desc="tp"), done=False)
    for rank in (0, 1, 3):
        beat_ns = START + int((job.now + lived_s) * SECOND)
        end = ExitFacts("signal", signal=15, by_launcher=True, at_ns=beat_ns)
        job.rank(rank, alive=False, heartbeat_ns=beat_ns, exit=end)
    job.rank(2, **EXITED)
    named = {r for _, culprits in found_in(job) for r in culprits}
    assert (named == {2}) is (lived_s > 0)


def test_headline_carries_the_doubt() -> None:
    lost = four_ranks(live=False, finished=(0,))
    lost.lose(2)
    assert diagnose(lost.trace()).headline.startswith("Probably: Rank 2 left no record")
    ended = four_ranks()
    ended.rank(2, **EXITED)
    certain = diagnose(ended.trace())
    assert certain.headline == certain.findings[0].headline == certain.summary
