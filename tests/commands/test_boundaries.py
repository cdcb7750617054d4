"""What HangScope reads cannot end a command in another way than by one line and a fixed status."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hangscope.toolkit.doctor.examine import check_script
from hangscope.trace.files.source_text import decode_source
from tests.called import called

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
FAILING = """
import sys
import hangscope.cli.analyze as analyze
from hangscope.cli import main

def fail(*_, **__):
    raise {error}

analyze.investigate = fail
sys.argv = ["hangscope", "analyze", "x"]
main()
"""


def failing(error: str, *options: str) -> subprocess.CompletedProcess[str]:
    code = FAILING.format(error=error)
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("error", ["IndexError('list index\\n\\x1b[31m')", "RecursionError()"])
def test_an_internal_error_is_one_line_and_has_its_own_status(error: str) -> None:
    run = failing(error)
    assert run.returncode == 3
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith(f"hangscope analyze: internal error, {error.split('(')[0]}")
    assert "open an issue" in run.stderr
    assert "\x1b" not in run.stderr


def test_a_developer_sees_the_traceback_of_an_internal_error() -> None:
    assert "Traceback" in failing("KeyError('x')", "-X", "dev").stderr


def test_memory_that_runs_out_is_no_verdict() -> None:
    run = failing("MemoryError()")
    assert run.returncode == 3
    assert "needs more memory than there is" in run.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(" * 300 + ")" * 300, "too many nested parentheses"),
        ("not " * 100_000 + "x", "nested too deeply"),
        ("a" + ".b" * 50_000, "nested too deeply"),
        ("# -*- coding: hex -*-\nx = 1", ""),
        ("# -*- coding: punycode -*-\nx = 1", ""),
        ("# -*- coding: undefined -*-\nx = 1", ""),
        ("# -*- coding: nothing-of-the-kind -*-\nx = 1", ""),
        ("x = '\0'", "null bytes"),
    ],
)
def test_the_doctor_survives_any_script(text: str, expected: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    found = [finding.what for finding in check_script(script) if finding.check == "script"]
    assert expected in " ".join(found)
    assert bool(found) == bool(expected)


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "directory", "large"])
@pytest.mark.parametrize("option", ["--script", "--deepspeed-config"])
def test_the_doctor_reads_regular_files_only(kind: str, option: str, tmp_path: Path) -> None:
    path = Path(kind) if kind == "/dev/zero" else tmp_path / "train.py"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)  # holds nothing
    run = called("doctor", option, str(path), "--json")
    assert run.returncode == 1
    wanted = {"directory": "directory", "large": "larger than 4 MiB"}
    assert wanted.get(kind, "not a regular file") in run.stdout


@pytest.mark.parametrize("kind", ["nested", "fifo", "large"])
def test_an_expectation_cannot_stop_a_replay(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "expected.toml"
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "x.log").write_text("x")
    if kind == "nested":
        file.write_text("x = " + "[" * 5000 + "]" * 5000)
    elif kind == "fifo":
        os.mkfifo(file)
    else:
        file.write_text("#" * (2 << 20))
    run = called("replay", str(tmp_path))
    wanted = {"nested": "nested too deeply", "fifo": "not a regular file", "large": "larger than"}
    assert run.returncode == 2
    assert wanted[kind] in run.stderr
    assert run.stderr.count("\n") == 1


def test_declared_encodings_are_respected() -> None:
    assert decode_source("# coding: latin-1\nx = 'é'".encode("latin-1")).endswith("'é'")
    assert decode_source("# coding: cp1251\nx = 'д'".encode("cp1251")).endswith("'д'")


def test_folders_without_end_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "d20-sigkill", tmp_path / "job")
    at = os.open(tmp_path / "job" / "dumps", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    run = called("analyze", str(tmp_path / "job" / "dumps"))
    assert run.returncode == 1, run.stderr
    assert "more than 100 deep" in " ".join(run.stdout.split())
    assert called("replay", str(tmp_path)).returncode == 0
    assert (
        called(
            "export",
            str(tmp_path / "job" / "dumps"),
            "--to",
            "fixture",
            "-o",
            str(tmp_path / "out"),
        ).returncode
        == 0
    )
    subprocess.run(["rm", "-rf", str(tmp_path / "job")], check=True)  # Python's own recurses, too
