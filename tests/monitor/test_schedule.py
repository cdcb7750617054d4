"""When the monitor takes a close look; times are passed in, there is no clock."""

from __future__ import annotations

import pytest

from hangscope.monitor.schedule import FIRST_LOOK_S, SETTLE_S, LookSchedule

STEPS = [{0: b"step 1"}, {0: b"step 2"}, {0: b"step 3"}]


def test_first_look_is_immediate_and_next_soon_after_progress() -> None:
    schedule = LookSchedule(120.0, changed_s=100.0)
    schedule.update(STEPS[0], 100.0, ended=False)
    assert schedule.is_due(100.0)
    schedule.looked(100.0, 100.0, stalled_s=40.0, cost_s=0.0)
    schedule.update(STEPS[1], 101.0, ended=False)
    assert schedule.changed_s == 101.0
    assert not schedule.is_due(101.0)
    assert schedule.is_due(101.0 + FIRST_LOOK_S)


def test_settle_time_after_an_end_ignores_progress() -> None:
    schedule = LookSchedule(120.0, changed_s=100.0)
    schedule.update(STEPS[0], 100.0, ended=True)
    schedule.update(STEPS[1], 100.1, ended=False)
    assert not schedule.is_due(100.0 + SETTLE_S - 0.1)
    assert schedule.is_due(100.0 + SETTLE_S)
    schedule.looked(101.0, 101.0, stalled_s=0.0, cost_s=0.0)
    schedule.update(STEPS[2], 101.5, ended=False)
    assert schedule.is_due(101.5 + FIRST_LOOK_S)


@pytest.mark.parametrize(
    ("stalled_s", "cost_s", "after_s"),
    [
        (0.0, 0.0, 1.0),
        (12.0, 0.0, 3.0),
        (60.0, 0.0, 5.0),
        (117.0, 0.0, 2.0),  # to find by then what the timeout will show
        (119.5, 0.0, 0.55),  # so as not to come late
        (100.0, 0.95, 17.1),
        (105.0, 8.0, 15.05),  # another look would still run when the timeout passes
        (122.0, 0.4, 0.8),
        (200.0, 0.0, 5.0),
        (200.0, 1.0, 20.0),  # a job of thousands of ranks
    ],
)
def test_looks_are_frequent_near_the_timeout_and_limited_in_cpu(
    stalled_s: float, cost_s: float, after_s: float
) -> None:
    schedule = LookSchedule(120.0, changed_s=100.0)
    schedule.looked(300.0, 300.0, stalled_s, cost_s)
    assert not schedule.is_due(300.0 + after_s - 0.01)
    assert schedule.is_due(300.0 + after_s + 0.001)


@pytest.mark.parametrize(("took_s", "wait_s"), [(0.1, 0.5), (0.8, 0.2), (4.0, 0.0)])
def test_long_look_is_confirmed_at_once(took_s: float, wait_s: float) -> None:
    schedule = LookSchedule(timeout_s=60.0, changed_s=0.0)
    schedule.looked(100.0, 100.0 + took_s, 60.0, took_s, urgent=True)
    assert not schedule.is_due(100.0 + took_s + wait_s - 0.01)
    assert schedule.is_due(100.0 + took_s + wait_s + 0.01)
