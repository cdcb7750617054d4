"""Hosts whose clocks disagree."""

from __future__ import annotations

import numpy as np
import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.clocks import align_clocks
from hangscope.trace.model import ExitFacts
from tests.diagnosis.builder import SECOND, START, Job

HOUR = 3600 * SECOND


def _job(
    shift_ns: int, jitter_s: float = 0.0, waiting: tuple[int, ...] = (0, 1, 3), steps: int = 12
) -> Job:
    """Ranks 0 and 1 on one host, 2 and 3 on another whose clock is off."""
    job = Job(4)
    job.steps(steps)
    for rank in waiting:
        job.op(rank, done=False)
    dice = np.random.default_rng(5)
    for row in job.rows:
        if row["rank"] > 1:
            off = shift_ns + int(dice.uniform(-jitter_s, jitter_s) * SECOND)
            row["created_ns"] += off
            row["completed_ns"] += off if row["completed_ns"] else 0
    for rank in range(4):
        end = START + int((job.now + 90.0) * SECOND)
        off = shift_ns if rank > 1 else 0
        job.rank(rank, host=f"node{rank // 2}", heartbeat_ns=end + off, observed_ns=end + off)
    return job


@pytest.mark.parametrize("shift_ns", [HOUR, -HOUR])
def test_times_are_put_on_one_clock_with_a_warning(shift_ns: int) -> None:
    trace = align_clocks(_job(shift_ns).trace())
    (warning,) = trace.warnings
    assert "clock of host node1 is 3600 s" in warning
    assert ("ahead of" if shift_ns > 0 else "behind") in warning
    created = trace.records["created_ns"]
    assert int(created.max() - created.min()) < 5 * SECOND
    assert abs(trace.ranks[3].observed_ns - trace.ranks[0].observed_ns) < SECOND


@pytest.mark.parametrize("shift_ns", [HOUR, -HOUR])
def test_one_operation_completed_before_it_was_issued_is_enough(shift_ns: int) -> None:
    assert align_clocks(_job(shift_ns, steps=1).trace()).warnings
    trace = _job(shift_ns // 120, steps=1).trace()
    assert align_clocks(trace) is trace, "half a minute may have another reason"


def test_hang_is_found_and_nothing_based_on_times_is_certain() -> None:
    found = diagnose(_job(HOUR).trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "likely"
    assert any("clocks" in unknown for unknown in found.findings[0].unknowns)
    (side,) = [s for s in found.findings[0].sides if 0 in s.ranks]
    assert side.waiting_s is not None
    assert side.waiting_s < 120


def test_first_failure_is_found_across_hosts() -> None:
    job = _job(-HOUR, waiting=())
    for rank, after_s, signal in ((1, 0.2, 11), (2, 0.6, 8), (0, 0.7, 15), (3, 0.7, 15)):
        at = START + int((job.now + after_s) * SECOND) - (HOUR if rank > 1 else 0)
        job.rank(rank, alive=False, exit=ExitFacts("signal", signal=signal, at_ns=at))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))


@pytest.mark.parametrize("shift_ns", [0, SECOND // 2])
def test_clocks_that_agree_are_unchanged(shift_ns: int) -> None:
    trace = _job(shift_ns).trace()
    assert align_clocks(trace) is trace
    assert diagnose(trace).confidence.value == "certain"


def test_delayed_completions_show_nothing_about_clocks() -> None:
    trace = _job(HOUR, jitter_s=3000.0).trace()
    assert align_clocks(trace) is trace


def test_single_host_has_one_clock() -> None:
    job = _job(HOUR)
    for rank in range(4):
        job.rank(rank, host="node0")
    trace = job.trace()
    assert align_clocks(trace) is trace
