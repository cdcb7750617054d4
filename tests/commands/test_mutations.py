"""A sample of damaged recordings: no traceback, no wrong exit status, no hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hangscope.ring.reader import RingReader
from tests.depth import examples

ROOT = Path(__file__).parents[2]


def test_damaged_jobs_end_as_they_should() -> None:
    count = examples(120)
    command = [sys.executable, "-m", "tools.mutations", "--first", "1", "--count", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} cases from 1 on, 0 faults" in done.stdout


def test_ring_that_cannot_be_opened_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RingReader(tmp_path / "gone.ring")
