"""Pictures of the screens; every time in them comes from the job, none from now.

Each pane is shown at one width per layout that it has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from textual.pilot import Pilot

from hangscope.diagnosis.engine import diagnose
from hangscope.tui.app import HangScopeApp
from hangscope.tui.source import StaticSource
from tests import view_samples as samples
from tests.view_driver import calm, settle
from tools.stragglers import Case, simulate

SIZES = {80: (80, 24), 120: (120, 34), 200: (200, 50)}


def application(job: samples.Job) -> HangScopeApp:
    return HangScopeApp(StaticSource(job.trace, lambda _: job.diagnosis, "hangscope-runs/latest"))


def pressing(*keys: str) -> Any:
    async def before(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, HangScopeApp)
        await settle(app, pilot)
        await pilot.press(*keys)
        await calm(app, pilot, 3)

    return before


@pytest.mark.parametrize("width", [80, 200])
def test_timeline_looks_as_agreed(snap_compare: Any, width: int) -> None:
    app = application(samples.hang(16, culprit=5))
    assert snap_compare(app, terminal_size=SIZES[width], run_before=pressing())


@pytest.mark.parametrize("width", list(SIZES))
def test_ranks_look_as_agreed(snap_compare: Any, width: int) -> None:
    app = application(samples.hang(16, culprit=5))
    assert snap_compare(app, terminal_size=SIZES[width], run_before=pressing("2"))


@pytest.mark.parametrize("width", [80, 200])
def test_sequence_looks_as_agreed(snap_compare: Any, width: int) -> None:
    app = application(samples.hang(16, culprit=5))
    assert snap_compare(app, terminal_size=SIZES[width], run_before=pressing("3"))


def test_details_look_as_agreed(snap_compare: Any) -> None:
    app = application(samples.hang())
    assert snap_compare(app, terminal_size=SIZES[80], run_before=pressing("d", "enter"))


def test_waits_look_as_agreed(snap_compare: Any) -> None:
    app = application(samples.deadlock())
    assert snap_compare(app, terminal_size=SIZES[80], run_before=pressing("5"))


def test_stacks_look_as_agreed(snap_compare: Any) -> None:
    app = application(samples.hang(16, culprit=5))
    assert snap_compare(app, terminal_size=SIZES[80], run_before=pressing("6"))


def test_who_is_late_looks_as_agreed(snap_compare: Any) -> None:
    rng = np.random.default_rng(1)
    trace = simulate(Case("every", 0.2, 8, 120, 0.01, (5,)), rng)
    app = HangScopeApp(StaticSource(trace, diagnose, "hangscope-runs/latest"))
    assert snap_compare(app, terminal_size=SIZES[120], run_before=pressing("7"))


def test_healthy_job_looks_as_agreed(snap_compare: Any) -> None:
    app = application(samples.healthy())
    assert snap_compare(app, terminal_size=SIZES[80], run_before=pressing())


def test_screen_without_colour_looks_as_agreed(
    snap_compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = application(samples.hang(16, culprit=5))
    assert snap_compare(app, terminal_size=SIZES[80], run_before=pressing())
