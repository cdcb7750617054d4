"""The application as a person uses it: keys, mouse, search, live updates, small terminals."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.color import ColorSystem
from textual.color import Color
from textual.pilot import Pilot

from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import RECORD_DTYPE, Frame, Trace
from hangscope.tui.app import PANES, HangScopeApp
from hangscope.tui.few_colours import has_few_colours
from hangscope.tui.screens import Over
from hangscope.tui.source import StaticSource
from tests import view_samples as samples
from tests.view_driver import calm, drive, run, screen


@pytest.fixture
def source_file(tmp_path: Path) -> Path:
    file = tmp_path / "data.py"
    code = ["import time", "", "", "def load_batch():", "    time.sleep(3600)  # the culprit", ""]
    file.write_text("\n".join(code))
    return file


def test_three_keys_lead_from_the_hang_to_the_diverging_line(source_file: Path) -> None:
    loader = (Frame("load_batch", str(source_file), 5), *samples.LOADER[1:])
    seen: list[str] = []

    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        for key in ("d", "enter", "s"):
            await pilot.press(key)
            await calm(app, pilot)
            seen.append(screen(app))

    job = samples.hang(loader=loader)
    asked = replace(job.diagnosis, source_directories=(str(source_file.parent),))
    run(replace(job, diagnosis=asked), script)
    assert "in load_batch" in seen[0]
    assert "ranks 0 1 3  waiting 12 s in all_reduce #103" in seen[1]
    assert "▸    5      time.sleep(3600)  # the culprit" in seen[2]


def test_verdict_is_on_top_of_every_pane() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        for i, name in enumerate(PANES):
            await pilot.press(str(i + 1))
            await calm(app, pilot)
            assert app.pane == name
            top = screen(app).split("\n")
            assert " HANG   4 ranks · gloo · no progress for 12 s" in top[0]
            assert top[1].strip() == "Rank 2 never joined all_reduce #103 in group dp (ranks 0–3)"
            assert top[2].strip().startswith("Do  look at data.py:41")

    run(samples.hang(), script)


def test_culprit_waiting_and_absence_are_drawn() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        rows = screen(app).split("\n")
        culprit = next(r for r in rows if r.startswith("▸ 2"))
        victim = next(r for r in rows if r.startswith("  0"))
        assert "in load_batch" in culprit
        assert "·····" in culprit
        assert "░" not in culprit
        assert "all_reduce #103" in victim
        assert "░░" in victim
        assert "▆▆" in victim
        assert app.timeline.rank == 2

    run(samples.hang(), script)


@pytest.mark.parametrize(("down", "up"), [("down", "up"), ("j", "k")])
def test_moving_between_ranks_keeps_the_collective(down: str, up: str) -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        await pilot.press("g", down)
        await calm(app, pilot)
        assert app.rank == 1
        assert app.record is not None
        assert app.snapshot is not None
        before = app.snapshot.label(app.record)
        await pilot.press(up)
        await calm(app, pilot)
        assert app.rank == 0
        assert app.snapshot.label(app.record) == before
        await pilot.press("G")
        await calm(app, pilot)
        assert app.rank == 3

    run(samples.hang(), script)


def test_stepping_zooming_panning_following() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        line = app.timeline
        assert app.snapshot is not None
        await pilot.press("d", "left")
        await calm(app, pilot)
        assert app.record is not None
        assert app.snapshot.label(app.record) == "all_reduce #101"
        scale = line.scale_ns
        await pilot.press("+")
        assert line.scale_ns < scale
        await pilot.press("-")
        assert line.scale_ns == pytest.approx(scale, rel=0.01)
        left = line.left_ns
        await pilot.press("]")
        assert line.left_ns > left
        await pilot.press("[")
        assert line.left_ns == left
        assert not line.follow
        await pilot.press("f")
        await calm(app, pilot)
        assert line.follow
        window = line.window()
        assert window.left_ns < app.snapshot.timing.last_ns < window.right_ns
        await pilot.press("0")
        await calm(app, pilot)
        window = line.window()
        assert window.left_ns <= app.snapshot.timing.first_ns
        assert window.right_ns >= app.snapshot.timing.last_ns

    run(samples.hang(), script)


def test_search_finds_ranks_hosts_and_operations() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        assert app.snapshot is not None
        await pilot.press("slash", *"rank 11", "enter")
        await calm(app, pilot)
        assert app.rank == 11
        await pilot.press("slash", *"#50", "enter")
        await calm(app, pilot)
        assert app.record is not None
        assert app.snapshot.label(app.record) == "all_reduce #50"
        here = app.rank
        await pilot.press("n")
        await calm(app, pilot)
        assert app.rank == (here + 1) % 16 if here is not None else False
        await pilot.press("slash", *"node3", "enter")
        await calm(app, pilot)
        assert app.snapshot.trace.ranks[app.rank or 0].host == "node3"
        await pilot.press("slash", *"[bold]nothing", "enter")
        await calm(app, pilot)
        assert "[bold]nothing" in screen(app)

    run(samples.hang(16, culprit=5), script)


def test_ranks_are_sorted_and_filtered() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await calm(app, pilot)
        assert app.ranks.rows[0] == 5  # culprits first
        await pilot.press("o")
        assert app.ranks.sort == "rank"
        assert app.ranks.rows == list(range(16))
        await pilot.press("O")
        assert app.ranks.rows == list(reversed(range(16)))
        await pilot.press("slash", *"sleeping", "enter")
        await calm(app, pilot)
        assert app.ranks.rows == [5]
        assert "1 of 16 ranks match" in screen(app)
        await pilot.press("escape")
        await calm(app, pilot)
        assert len(app.ranks.rows) == 16
        await pilot.click("#ranks", offset=(12, 0))  # the header of "state"
        assert app.ranks.sort == "state"

    run(samples.hang(16, culprit=5), script)


def test_sequence_shows_who_lacks_which() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        await calm(app, pilot)
        rows = screen(app).split("\n")
        assert any("group dp" in r and "1 of 3" in r for r in rows)
        assert any("#103" in r for r in rows)
        culprit = next(r for r in rows if r.startswith("▸ 2"))
        assert culprit.rstrip().endswith("✗")
        assert culprit.count("■") > 10
        victim = next(r for r in rows if r.startswith("  0"))
        assert victim.rstrip().endswith("░")
        await pilot.press(">")
        await calm(app, pilot)
        assert "group tp0" in screen(app)
        await pilot.press("d")
        await calm(app, pilot)
        assert "group dp" in screen(app)
        await pilot.press("left")
        await calm(app, pilot)
        assert app.snapshot is not None
        assert app.record is not None
        assert app.snapshot.label(app.record) == "all_reduce #102"

    run(samples.hang(), script)


def test_panes_show_who_waits_for_whom_and_where() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        await pilot.press("5")
        await calm(app, pilot)
        text = screen(app)
        assert "▸ rank 0  waiting" in text
        assert "▸ rank 1  waits in broadcast #4 of tp0" in text
        assert "closes the cycle" in text
        assert "ranks 2 3  wait in all_reduce #9 of dp" in text
        await pilot.press("6")
        await calm(app, pilot)
        text = screen(app)
        assert "all ranks" in text
        assert "ranks 0 1 3   not rank 2" in text
        assert "rank 2   not ranks 0 1 3" in text

    run(samples.deadlock(), script)


def test_enter_on_a_rank_shows_its_details_and_escape_goes_back() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        await pilot.press("2", "j", "enter")
        await calm(app, pilot)
        assert app.pane == "details"
        assert "Rank 0  victim · waiting · node0 · pid 4709" in screen(app)
        await pilot.press("escape")
        await calm(app, pilot)
        assert app.pane == "ranks"
        await pilot.press("escape")
        assert app.pane == "timeline"

    run(samples.hang(), script)


def test_help_lists_keys_and_closes() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await calm(app, pilot)
        assert isinstance(app.screen, Over)
        assert "jump to where the job parted" in screen(app)
        await pilot.press("escape")
        await calm(app, pilot)
        assert not isinstance(app.screen, Over)

    run(samples.hang(), script)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_app_is_quit_like_any_terminal_program(key: str) -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        assert not app._exit
        await pilot.press(key)
        await pilot.pause()
        assert app._exit

    run(samples.hang(), script)


def test_command_palette_offers_panes_and_groups() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        commands = {c.title: c for c in app.get_system_commands(app.screen)}
        assert {"Timeline", "Divergence", "Group dp", "Group tp1", "Quit"} <= set(commands)
        commands["Group tp1"].callback()
        await calm(app, pilot)
        assert "group tp1" in screen(app)
        await pilot.press("ctrl+p")
        await calm(app, pilot)
        assert type(app.screen).__name__ == "CommandPalette"
        await pilot.press("escape")

    run(samples.hang(), script)


def test_command_palette_takes_any_group_name() -> None:
    job = samples.hang()
    groups = (replace(job.trace.groups[0], desc="[/no]such[markup\x1b[31m"), *job.trace.groups[1:])
    named = samples.Job(replace(job.trace, groups=groups), samples.healthy().diagnosis)

    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p")
        await calm(app, pilot)
        await pilot.press(*"such")
        for _ in range(100):
            if "Group" in screen(app):
                break
            await pilot.pause(0.05)
        assert "[/no]such[markup" in screen(app)
        assert "\x1b" not in screen(app)
        await pilot.press("escape")

    run(named, script)


def test_mouse_selects_and_opens() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        await pilot.click("#timeline", offset=(60, 1))
        await calm(app, pilot)
        assert app.rank == 0
        assert app.snapshot is not None
        assert app.record is not None
        assert app.snapshot.is_open(app.record)
        await pilot.click("#bar", offset=(18, 0))
        await calm(app, pilot)
        assert app.pane == "ranks"
        await pilot.click("#ranks", offset=(10, 2), times=2)
        await calm(app, pilot)
        assert app.pane == "details"

    run(samples.hang(), script)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("hang", (20, 8)),
        pytest.param("hostile", (40, 12), marks=pytest.mark.slow),
        ("hostile", (160, 40)),
        pytest.param("healthy", (80, 24), marks=pytest.mark.slow),
        ("inconclusive", (80, 24)),
        ("empty", (80, 24)),
    ],
)
def test_every_pane_at_every_size(name: str, size: tuple[int, int]) -> None:
    job = {
        "hang": samples.hang(),
        "healthy": samples.healthy(),
        "hostile": samples.hostile(),
        "inconclusive": samples.Job(samples.hang().trace, samples.inconclusive()),
        "empty": samples.Job(
            Trace(np.zeros(0, RECORD_DTYPE), samples.hang().trace.members[:0], (), (), (), {}),
            samples.inconclusive(),
        ),
    }[name]

    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        for key in "123456":
            await pilot.press(key, "j", "l", "G")
            await calm(app, pilot)
            text = screen(app)
            assert not any(c in text for c in "\x1b\x07\u202e")
            await pilot.press("d")
        await pilot.press("s", "escape", "+", "-", "0", "f", "n", "enter")
        await calm(app, pilot)

    run(job, script, size)


def test_without_colour_operations_are_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        text = screen(app)
        assert "RRRRRR" in text
        assert "GG" in text
        assert "▸ 2" in text
        assert "R reduce" in text

    run(samples.hang(), script)


@pytest.mark.parametrize(
    ("environment", "few"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "screen"}, True),
        ({"TERM": "linux", "COLORTERM": ""}, True),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, False),
        ({}, True),
    ],
)
def test_terminals_with_sixteen_colours_are_known(environment: dict[str, str], few: bool) -> None:
    assert has_few_colours(environment) is few


def test_operations_differ_in_sixteen_colours() -> None:
    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        assert app.few_colours is not None
        seen: dict[str, set[str]] = {}
        for strip in app.screen._compositor.render_strips():
            for segment in app.few_colours.apply(list(strip), Color(0, 0, 0)):
                if segment.style and segment.style.color and segment.text.strip():
                    narrow = segment.style.color.downgrade(ColorSystem.STANDARD)
                    for char in set(segment.text) & set("▆░·▸"):
                        seen.setdefault(char, set()).add(str(narrow.number))
        assert len(seen["▆"]) == 2  # reduce and gather
        assert len(seen["░"]) == 1
        assert not seen["░"] & seen["▸"]

    job = samples.hang(16, culprit=5)
    source = StaticSource(job.trace, lambda _: job.diagnosis, "a run")
    drive(HangScopeApp(source, few_colours=True), script)


def test_large_job_is_drawn_before_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangscope.tui.source._QUICKLY_JUDGED", 10)
    job, may_judge = samples.hang(16, culprit=5), threading.Event()

    def judge(_: Trace) -> Diagnosis:
        may_judge.wait(60)
        return job.diagnosis

    async def script(app: HangScopeApp, pilot: Pilot[None]) -> None:
        assert app.snapshot is not None
        assert not app.snapshot.is_judged
        assert "looking for the cause" in screen(app)
        assert "all_reduce #" in screen(app)
        may_judge.set()
        while not app.snapshot.is_judged:
            await pilot.pause(0.02)
        await calm(app, pilot)
        assert "Rank 5 never joined" in screen(app)
        assert app.rank == 5

    drive(HangScopeApp(StaticSource(job.trace, judge, "a run")), script)
