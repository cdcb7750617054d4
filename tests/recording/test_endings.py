"""An exception that ends a process is on record, even where no hook is called for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hangscope.trace.from_ring import read_ring
from tests.recording.launcher import JOBS, environment, run


def facts_after(how: str, directory: Path) -> object:
    env = environment(HANGSCOPE_DIR=str(directory), HANGSCOPE_MONITOR="0", HOW=how)
    run([sys.executable, str(JOBS / "ending_job.py")], env)
    (path,) = directory.glob("*.ring")
    return read_ring(path).facts


@pytest.mark.parametrize(
    "how", ["caught", "caught_and_left_hard", "spawn", "process-spawn", "process-fork"]
)
def test_what_a_process_died_of_is_on_record(tmp_path: Path, how: str) -> None:
    facts = facts_after(how, tmp_path)
    assert facts.exception is not None  # type: ignore[attr-defined]
    assert facts.exception.type_name == "ValueError"  # type: ignore[attr-defined]
    assert "below its minimum" in facts.exception.message  # type: ignore[attr-defined]
    assert facts.exception.is_main_thread  # type: ignore[attr-defined]
    assert facts.exception.stack[0].name == "fail"  # type: ignore[attr-defined]


def test_what_it_survived_is_not(tmp_path: Path) -> None:
    facts = facts_after("later", tmp_path)
    assert facts.exception is None  # type: ignore[attr-defined]
    assert facts.exit is not None  # type: ignore[attr-defined]
    assert facts.exit.code == 5  # type: ignore[attr-defined]
