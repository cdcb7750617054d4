"""A pause longer than the timeout is reported, and so is its end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.real_jobs import beside, environment, worlds

pytestmark = pytest.mark.timed

_JOB = """
import os, sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
while dist.get_rank() == 1 and not os.path.exists(f"{sys.argv[1]}/go"):
    time.sleep(0.1)
dist.all_reduce(torch.ones(4))
while sys.argv[2] == "goes on" and not os.path.exists(f"{sys.argv[1]}/end"):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.1)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("then", ["goes on", "ends at once"])
def test_end_of_a_reported_pause_is_reported(tmp_path: Path, then: str) -> None:
    script, log = tmp_path / "job.py", tmp_path / "log"
    script.write_text(_JOB)
    env = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(tmp_path / "rings"), HANGSCOPE_TIMEOUT="2")
    command = [sys.executable, str(script), str(tmp_path), then]
    with beside(command, [env | place for place in worlds(2)], log) as job:
        _until_said(log, "more: hangscope analyze")
        assert "moving again" not in log.read_text()
        (tmp_path / "go").touch()
        _until_said(log, "[hangscope] moving again after ")
        (tmp_path / "end").touch()
        for rank in job:
            rank.wait(60)
    (said,) = [line for line in log.read_text().splitlines() if "moving again" in line]
    assert said.endswith(": all ranks have ended with status 0") == (then == "ends at once")


def _until_said(log: Path, words: str, within_s: float = 90.0) -> None:
    until_s = time.monotonic() + within_s
    while words not in log.read_text():
        assert time.monotonic() < until_s, f"never said: {words}\n{log.read_text()}"
        time.sleep(0.1)
