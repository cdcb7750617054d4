"""All commands: errors are one line, data goes to stdout, colour only when wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.called import called

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
ESCAPE = "\x1b"


def _hangscope(*arguments: str, cwd: Path | None = None, **variables: str) -> CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            patch.delenv(name, raising=False)
        return called(*arguments, cwd=cwd, **variables)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["anlyze"], "(did you mean analyze?)"),
        (["train.py"], "(did you mean: hangscope run -- torchrun train.py ...)"),
        ([str(FIXTURES)], f"(did you mean: hangscope analyze {FIXTURES})"),
        (["analyze", str(FIXTURES / "stopped"), "--html", "-"], "written to a file"),
        (["export", str(FIXTURES / "stopped"), "--to", "html", "-o", "-"], "give its name"),
        (["doctor", "--run", "/does/not/exist"], "no such file or directory"),
        (["analyze"], "Missing argument 'PATH...'"),
        (["analyze", "--rank", "x", "run"], "'x' is not a valid integer"),
        (["analyze", "/does/not/exist"], "no such file or directory"),
        (["run", "--timeout", "soon", "--", "true"], "'soon' is not a valid"),
        (["run", "--timeout", "0", "--", "true"], "0 is not between 0.1 and 10000000"),
        (["run", "--", "/does/not/exist"], "cannot run /does/not/exist"),
        (["replay", "/does/not/exist"], "no such directory"),
        (["replay", __file__], "a file, not a directory"),
        (["analyze", ""], "empty path (an unset variable?)"),
        (["replay", ""], "empty path"),
        (["analyze", str(FIXTURES / "stopped"), "--html", "/no/x"], "another path with --html"),
        (["collect", str(FIXTURES / "stopped"), "-o", f"{__file__}/x"], "another path with -o"),
        (["collect", "/does/not/exist", "-o", "x"], "give a run directory"),
        (["analyze", str(FIXTURES / "stopped"), "--brief"], "works with --json only"),
        (["demo", "--dir", __file__, "sigkill"], "another path with --dir"),
        (["run", "--", __file__], "cannot run"),
        (["run", "--timeout", "nan", "--", "true"], "'nan' is not a valid number of seconds"),
        (["doctor", "--memory", "nan", "--parameters", "7B"], "'nan' is not a valid number"),
        (["doctor", "--parameters", "7x"], "give a number such as 7e9"),
        (["demo", "--timeout", "soon"], "'soon' is not a valid number of seconds"),
        (["env", "--torch", "newest"], "give a version"),
        (["demo", "nonsense"], "no demo is called 'nonsense'"),
    ],
)
def test_error_is_one_line_and_exit_status_two(arguments: list[str], said: str) -> None:
    done = _hangscope(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_newest_run_is_named_without_a_path(tmp_path: Path) -> None:
    (tmp_path / "hangscope-runs" / "latest").mkdir(parents=True)
    done = _hangscope("analyze", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "(the newest run here is hangscope-runs/latest)" in done.stderr


def test_doctors_table_fits_the_terminal_and_has_units() -> None:
    done = _hangscope("doctor", "--no-notes", COLUMNS="80", HANGSCOPE_TIMEOUT="30")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    told = {line.split()[0]: line for line in lines if line}
    assert "30 s (user)" in told["HANGSCOPE_TIMEOUT"]
    assert "15000 ms" in told["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"]


def test_shell_completes_commands_and_names() -> None:
    asked = {"COMP_WORDS": "hangscope demo asl", "COMP_CWORD": "2"}
    environment = {**os.environ, "_HANGSCOPE_COMPLETE": "bash_complete", **asked}
    command = [sys.executable, "-m", "hangscope"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "plain,asleep-in-loader\n"


def test_unreadable_directory_is_one_line() -> None:
    """Root may read everything, but nobody can open a name that is too long."""
    done = _hangscope("tui", "x" * 300)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("analyze {stopped} >&-", 1),
        ("analyze {stopped} > /dev/full", 2),
        ("analyze {stopped} --json > /dev/full", 2),
        ("analyze /does/not/exist 2>/dev/full", 2),
    ],
)
def test_closed_streams_change_no_exit_status(command: str, status: int) -> None:
    line = f"{sys.executable} -m hangscope {command.format(stopped=FIXTURES / 'stopped')}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    if "> /dev/full" in command:
        assert "cannot write the output: No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("options", "environment", "coloured"),
    [
        ([], {}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (["--no-color"], {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colour_only_if_requested(
    options: list[str], environment: dict[str, str], coloured: bool
) -> None:
    done = _hangscope("analyze", *options, str(FIXTURES / "stopped"), **environment)
    assert done.returncode == 1
    assert "missing" in done.stdout or "never joined" in done.stdout
    assert (ESCAPE in done.stdout) is coloured


@pytest.mark.parametrize("columns", ["abc", "", "-3", "1"])
def test_malformed_width_is_no_error(columns: str) -> None:
    done = _hangscope("analyze", str(FIXTURES / "stopped"), COLUMNS=columns)
    assert done.returncode == 1
    assert done.stderr == ""


def test_fixture_is_judged_without_mentioning_its_expectation() -> None:
    done = _hangscope("analyze", str(FIXTURES / "stopped"))
    assert done.returncode == 1
    assert "expected.toml" not in done.stdout
