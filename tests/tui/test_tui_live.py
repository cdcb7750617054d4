"""The application while the job lives, and with very many ranks."""

from __future__ import annotations

import time
from dataclasses import replace

from textual.pilot import Pilot

from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import Trace
from hangscope.tui.app import HangScopeApp
from hangscope.tui.snapshot import take
from tests import view_samples as samples
from tests.view_driver import calm, drive, run, screen


class Moving:
    """A job whose state is set by the test."""

    title, live = "a live run", True

    def __init__(self) -> None:
        self.state = "healthy"
        self.looks = 0

    def look(self) -> Trace:
        self.looks += 1
        if self.state == "broken":
            raise OSError("the file was just replaced")
        self.job = samples.healthy() if self.state == "healthy" else samples.hang()
        return self.job.trace

    def judge(self, trace: Trace) -> Diagnosis:
        return self.job.diagnosis


def test_live_verdict_changes_by_itself_and_survives_a_bad_look() -> None:
    source = Moving()

    async def appears(app: HangScopeApp, pilot: Pilot[None], words: str) -> None:
        until = time.monotonic() + 20
        while words not in screen(app):
            assert time.monotonic() < until, screen(app)
            await pilot.pause(0.05)

    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        assert "HEALTHY" in screen(app)
        source.state = "broken"
        await appears(app, pilot, "could not look: OSError: the file was just replaced")
        assert "HEALTHY" in screen(app)  # the last picture stays
        source.state = "hung"
        await appears(app, pilot, "Rank 2 never joined")
        await appears(app, pilot, "in load_batch")
        assert "could not look" not in screen(app)

    drive(HangScopeApp(source, refresh_s=0.1), script)
    assert source.looks >= 3


def test_selection_survives_a_ring_that_moved_on() -> None:
    job = samples.hang()
    later = replace(job.trace, records=job.trace.records[20:])

    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        await pilot.press("d", "left", "left")
        await calm(app, pilot)
        assert app.snapshot is not None
        assert app.record is not None
        before = app.snapshot.label(app.record), app.rank
        app.show(take(later, job.diagnosis))
        await calm(app, pilot)
        assert app.record is not None
        assert (app.snapshot.label(app.record), app.rank) == before

    run(job, script)


def test_2048_ranks_scroll_to_the_culprit() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        assert "▸ 1500" in screen(app)
        await pilot.press("g")
        await calm(app, pilot)
        assert "▸ 1500" not in screen(app)
        await pilot.press("c")
        await calm(app, pilot)
        assert "▸ 1500" in screen(app)

    run(samples.hang(2048, culprit=1500, steps=2), script)
