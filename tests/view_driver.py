"""Runs the application without a terminal: a script presses keys and looks at the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from textual.pilot import Pilot

from hangscope.tui.app import HangScopeApp
from hangscope.tui.source import StaticSource
from tests import view_samples as samples

Script = Callable[[HangScopeApp, Pilot[None]], Awaitable[None]]


def run(job: samples.Job, script: Script, size: tuple[int, int] = (80, 24)) -> HangScopeApp:
    """Run the application on `job` and let `script` press keys."""
    return drive(
        HangScopeApp(StaticSource(job.trace, lambda _: job.diagnosis, "a run")), script, size
    )


def drive(app: HangScopeApp, script: Script, size: tuple[int, int] = (80, 24)) -> HangScopeApp:
    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            await script(app, pilot)

    asyncio.run(asyncio.wait_for(main(), 60))
    return app


async def settle(app: HangScopeApp, pilot: Pilot[None]) -> None:
    """Wait until everything has been drawn once, and the screen stands still."""
    for _ in range(400):
        drawn = app.snapshot is not None and app.query("FooterKey")
        if drawn and (app.timeline.scale_ns or not app.snapshot.ranks):
            break
        await pilot.pause(0.02)
    assert app.snapshot is not None, app.trouble
    await calm(app, pilot)


async def calm(app: HangScopeApp, pilot: Pilot[None], looks: int = 2) -> None:
    """Wait until the screen is the same at so many more looks, however slow the machine is."""
    same, before = 0, ""
    for _ in range(200):
        await pilot.pause()
        await asyncio.sleep(0.01)
        now = screen(app)
        same, before = (same + 1 if now == before else 0), now
        if same == looks:
            return


def screen(app: HangScopeApp) -> str:
    """What stands on the screen, as text."""
    strips = app.screen._compositor.render_strips()
    lines = ["".join(segment.text for segment in strip) for strip in strips]
    assert len(lines) == app.size.height
    return "\n".join(line.rstrip() for line in lines)
