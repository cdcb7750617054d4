"""A real terminal (tmux), a real hung job, real keys; and pipes, stills and refusals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

import hangscope
from hangscope.report import flight_recorder
from hangscope.trace.rings.read import read_ring
from tests import view_samples as samples
from tests.called import called
from tests.real_jobs import beside, environment, worlds
from tests.waiting import until

HANGSCOPE = [sys.executable, "-m", "hangscope"]
TRAIN = Path(hangscope.__file__).parent / "demos" / "train.py"
JOB_S = 120


@pytest.fixture(scope="module")
def hung_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The run directory of a job that hangs for as long as the tests of this file need it."""
    pytest.importorskip("torch.distributed")
    directory = tmp_path_factory.mktemp("run")
    env = environment(
        HANGSCOPE="1", HANGSCOPE_DIR=str(directory), HANGSCOPE_TIMEOUT="2", HANGSCOPE_MONITOR="0"
    )
    command = [sys.executable, str(TRAIN), "--fault", "asleep-in-loader"]
    with beside(command, [env | place for place in worlds(4)], directory / "job.log"):
        until(lambda: len(list(directory.glob("*.ring"))) == 4, JOB_S)
        wait_until_still(directory, 3.0)  # longer than HANGSCOPE_TIMEOUT
        yield directory


def wait_until_still(directory: Path, seconds: float) -> None:
    """Wait until all ranks have issued something, and then none has for ``seconds``."""
    until = time.monotonic() + JOB_S
    seen: list[int] = []
    since = time.monotonic()
    while time.monotonic() < until:
        issued = [read_ring(path).source.records for path in sorted(directory.glob("*.ring"))]
        if issued != seen or not all(issued):
            seen, since = issued, time.monotonic()
        elif time.monotonic() - since > seconds:
            return
        time.sleep(0.2)
    raise AssertionError(f"it went on: {seen} records")


class Terminal:
    """A tmux pane in a separate server."""

    def __init__(self, name: str, command: str, columns: int, rows: int, term: str) -> None:
        self.tmux = ["tmux", "-L", name, "-f", "/dev/null"]
        size = ["-x", str(columns), "-y", str(rows)]
        subprocess.run(
            [*self.tmux, "new-session", "-d", *size, f"TERM={term} {command}"],
            check=True,
            timeout=20,
        )

    def screen(self) -> str:
        run = subprocess.run(
            [*self.tmux, "capture-pane", "-p"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        return run.stdout

    def press(self, *keys: str) -> None:
        subprocess.run([*self.tmux, "send-keys", *keys], check=True, timeout=20)

    def wait(self, words: str, seconds: float = 40) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if words in (text := self.screen()):
                return text
            time.sleep(0.2)
        raise AssertionError(f"{words!r} never came:\n{self.screen()}")

    def close(self) -> None:
        subprocess.run([*self.tmux, "kill-server"], timeout=20, check=False, capture_output=True)


@pytest.mark.timed
@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux on this machine")
# "screen" has few colours.
@pytest.mark.parametrize(
    "term", ["screen-256color", pytest.param("screen", marks=pytest.mark.slow)]
)
def test_three_keys_in_a_real_terminal(hung_job: Path, term: str) -> None:
    program = " ".join([*HANGSCOPE, "tui", str(hung_job)])
    terminal = Terminal(f"hangscope-test-{os.getpid()}", program, 80, 24, term)
    try:
        text = terminal.wait("Rank 2 never joined all_reduce")
        assert "HANG" in text.split("\n")[0]
        assert "live" in text.split("\n")[0]
        terminal.press("d")
        terminal.wait("▸ 2")
        terminal.press("Enter")
        text = terminal.wait("ranks 0 1 3  waiting")
        assert "in load_batch" in text
        terminal.press("s")
        text = terminal.wait("def load_batch(")
        line = next(line for line in text.split("\n") if "time.sleep(" in line)
        assert "▸" in line
        terminal.press("q")
        time.sleep(0.5)
        terminal.press("q")
        until = time.monotonic() + 10
        while terminal.screen() and time.monotonic() < until:
            time.sleep(0.2)
        assert terminal.screen() == ""  # it left, and the session with it
    finally:
        terminal.close()


@pytest.mark.timed
@pytest.mark.slow
def test_still_of_a_live_job_holds_the_verdict_and_needs_no_network(
    hung_job: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "still.svg"
    run = subprocess.run(
        [*HANGSCOPE, "tui", str(hung_job), "--screenshot", str(picture), "--size", "100x30"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    svg = picture.read_text()
    text = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "Rank 2 never joined all_reduce" in text
    assert "https://cdn" not in svg
    assert "@font-face" not in svg


def test_still_of_dumps_holds_their_operations(tmp_path: Path) -> None:
    flight_recorder.write(samples.hang().trace, tmp_path / "dumps")
    picture = tmp_path / "still.svg"
    done = called("tui", str(tmp_path / "dumps"), "--screenshot", str(picture))
    assert done.returncode == 0, done.stderr
    text = "".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
    assert "all_reduce #103" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no run in hangscope-runs/latest"),
        (["missing"], "nothing readable in missing"),
        (["-"], "standard input is the keyboard here"),
        ([".", "--size", "huge", "--screenshot", "x.svg"], "write columns x rows"),
        ([".", "--screenshot", "x.png"], "the picture is an SVG"),
        ([".", "--screenshot", "x.svg", "--keys", "d,entre"], "no key is called 'entre'"),
    ],
)
def test_refusals_are_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = called("tui", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
