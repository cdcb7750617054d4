"""A rank's current state."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from hangscope.monitor.rank_state import has_failed, is_blocked_from_outside, is_heartbeat_late
from hangscope.trace.model import ExceptionFacts, ExitFacts, RankFacts


@pytest.mark.parametrize(
    ("exit_", "message", "expected"),
    [
        (ExitFacts("signal", signal=9), None, True),
        (ExitFacts("signal", signal=11), None, True),
        (ExitFacts("signal", signal=9, by_launcher=True), None, False),
        (ExitFacts("signal", signal=15), None, False),
        (ExitFacts("code", code=3), None, False),
        (None, "a bad sample", True),
        (None, "Connection closed by peer [::1]:12", False),
        (None, None, False),
    ],
)
def test_failed_ranks_need_no_exit_status(
    exit_: ExitFacts | None, message: str | None, expected: bool
) -> None:
    raised = ExceptionFacts("RuntimeError", message) if message else None
    assert has_failed(RankFacts(0, exit=exit_, exception=raised)) == expected


@pytest.mark.parametrize(
    ("late_s", "state", "blocked", "silent"),
    [
        (4.0, "sleeping", False, True),
        (2.0, "sleeping", False, False),  # with a heartbeat every two seconds
        (4.0, "stopped", False, False),
        (4.0, "zombie", False, False),
        (4.0, "running", True, False),
    ],
)
def test_heartbeat_is_late_only_of_a_rank_that_could_run(
    late_s: float, state: str, blocked: bool, silent: bool
) -> None:
    facts = RankFacts(
        0,
        alive=True,
        heartbeat_ns=time.time_ns() - int(late_s * 1e9),
        heartbeat_interval_s=2.0,
        process_state=state,
        gil_blocked=blocked,
    )
    assert is_heartbeat_late(facts) is silent
    assert not is_heartbeat_late(replace(facts, alive=False))
    assert is_blocked_from_outside(facts) is (blocked or state in ("stopped", "zombie"))
