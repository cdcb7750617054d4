"""What holds for every command: help that fits, and errors of one line that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hangscope.cli import COMMANDS, cli
from tests.called import called


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_and_cuts_no_word(command: str) -> None:
    run = CliRunner().invoke(cli, [command, "--help"])
    assert run.exit_code == 0
    lines = run.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("|" in line and line.count("[") != line.count("]") for line in lines)
    assert "\n\n\n" not in "\n".join(line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["analyze", "--group"], "hangscope analyze: Option '--group' requires an argument"),
        (["analyze", "--bogus", "."], "hangscope analyze: No such option '--bogus'"),
        (["export", ".", "--to", "pdf", "-o", "x"], "'pdf' is not one of 'flight-recorder'"),
        (["doctor", "--wrapper", "x"], "'x' is not one of 'ddp'"),
        (["--bogus"], "hangscope: No such option '--bogus'; see hangscope --help"),
    ],
)
def test_usage_errors_name_the_command_whose_help_explains(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    run = called(*arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert words in run.stderr
    assert run.stderr.count("\n") == 1
    assert f"see hangscope {arguments[0]} --help".replace(" --bogus", "") in run.stderr
