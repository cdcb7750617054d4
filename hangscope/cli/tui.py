"""``hangscope tui``: timelines in the terminal."""

from __future__ import annotations

import asyncio
import re
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from hangscope.cli import LATEST
from hangscope.cli.budget import budget_options
from hangscope.cli.console import say, say_warnings
from hangscope.cli.errors import UserError, cannot_write, no_empty_path, nothing_readable
from hangscope.cli.types import Seconds, source_option

if TYPE_CHECKING:
    from textual.app import App
    from textual.pilot import Pilot

    from hangscope.trace.loading.budget import Budget

_OTHER_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf")


@click.command("tui")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--screenshot", metavar="FILE.svg", help="Write one screenshot and exit.")
@click.option(
    "--size",
    default="120x36",
    metavar="COLSxROWS",
    show_default=True,
    help="Size of the screenshot.",
)
@click.option(
    "--keys",
    default="",
    metavar="KEY,...",
    help="Keys to press before the screenshot, such as d,enter or 2.",
)
@click.option(
    "--refresh",
    type=Seconds(0.1, 3600),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Time between refreshes.",
)
@click.option(
    "--ask-stacks",
    is_flag=True,
    help="Ask ranks of a live run that cannot run Python for their stacks, by a signal.",
)
@source_option
@budget_options
def command(
    paths: tuple[str, ...],
    screenshot: str | None,
    size: str,
    keys: str,
    refresh: float,
    ask_stacks: bool,
    source: tuple[str, ...],
    budget: Budget,
) -> None:
    """Show timelines in the terminal, live while the job runs or post-mortem.

    PATH is anything that `hangscope analyze` reads; by default, the newest run below the working
    directory. Press ? for help on keys.
    """
    if not paths:
        if not Path(LATEST).exists():
            raise UserError(
                f"no run in {LATEST}; start a job here with HANGSCOPE=1, or give a run directory "
                "or dumps: hangscope tui PATH"
            )
        paths = (LATEST,)
    no_empty_path(paths)
    if "-" in paths:
        raise UserError("standard input is the keyboard here; save the log to a file first")
    columns, rows = _size(size)
    pressed = _keys(keys)
    if screenshot is not None and Path(screenshot).suffix.lower() in _OTHER_PICTURES:
        raise UserError(f"--screenshot {screenshot}: the picture is an SVG; name it FILE.svg")
    from hangscope.trace.load import NothingReadable

    try:
        from hangscope.tui.source import open_source

        opened = open_source(paths, ask_stacks=ask_stacks, source_directories=source, budget=budget)
    except NothingReadable as error:
        raise nothing_readable(paths, error.warnings) from error
    from hangscope.tui.app import HangScopeApp

    if screenshot is None:
        if not sys.stdout.isatty():
            raise UserError("not a terminal; use --screenshot FILE.svg, or hangscope analyze")
        from hangscope.tui.few_colours import has_few_colours

        HangScopeApp(opened, refresh_s=refresh, few_colours=has_few_colours()).run()
        say_warnings(opened.look().warnings)
        return
    app = HangScopeApp(opened, refresh_s=refresh)
    svg = asyncio.run(take_screenshot(app, columns, rows, pressed))
    try:
        Path(screenshot).write_text(svg, encoding="utf-8")
    except OSError as error:
        raise cannot_write(screenshot, error, "--screenshot") from error
    say_warnings(opened.look().warnings)
    say(f"hangscope: screenshot in {screenshot}", err=True)


async def take_screenshot(app: object, columns: int, rows: int, keys: list[str]) -> str:
    """A screenshot of `app` as an SVG that loads nothing from the network."""
    from hangscope.tui.app import HangScopeApp

    assert isinstance(app, HangScopeApp)
    async with app.run_test(size=(columns, rows)) as pilot:
        while not app.trouble and (app.snapshot is None or not app.snapshot.is_judged):
            await pilot.pause(0.02)
        while not app.query("FooterKey") or (app.ranks_known and not app.timeline.scale_ns):
            await pilot.pause(0.02)
        await _wait_until_drawn(app, pilot)
        if keys:
            await pilot.press(*keys)
            await _wait_until_drawn(app, pilot)
        svg = app.export_screenshot(title="hangscope")
    return re.sub(r"@font-face\s*\{[^}]*\}", "", svg)


async def _wait_until_drawn(app: App[None], pilot: Pilot[None]) -> None:
    """Wait until all effects of the last key have been drawn."""
    before, same = "", 0
    for _ in range(100):
        await pilot.pause(0.03)
        now = app.export_screenshot()
        same, before = (same + 1 if now == before else 0), now
        if same == 2:
            return


def _keys(text: str) -> list[str]:
    """The keys of ``--keys``, by Textual's names."""
    from textual.keys import Keys

    known = {key.value for key in Keys}
    keys = [key for key in text.split(",") if key]
    for key in keys:
        plain_key = key.rpartition("+")[2]
        if len(plain_key) != 1 and plain_key not in known and not _is_character(plain_key):
            raise UserError(
                f"--keys: no key is called {key!r}; write letters, enter, tab, escape, up, down, "
                "left, right or ctrl+p, with commas between"
            )
    return keys


def _is_character(name: str) -> bool:
    """Whether a character is called so, as in ``question_mark``."""
    try:
        return bool(unicodedata.lookup(name.replace("_", " ")))
    except KeyError:
        return False


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
    if match is None:
        raise UserError(f"--size {text}: write columns x rows, such as 120x36")
    return int(match.group(1)), int(match.group(2))
