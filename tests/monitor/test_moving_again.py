"""A pause longer than the timeout is reported, and so is its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.real_jobs import beside, environment, worlds
from tests.waiting import until

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


@pytest.mark.parametrize("then", [pytest.param("goes on", marks=pytest.mark.slow), "ends at once"])
def test_end_of_a_reported_pause_is_reported(tmp_path: Path, then: str) -> None:
    script, log = tmp_path / "job.py", tmp_path / "log"
    script.write_text(_JOB)
    env = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(tmp_path / "rings"), HANGSCOPE_TIMEOUT="2")
    command = [sys.executable, str(script), str(tmp_path), then]
    with beside(command, [env | place for place in worlds(2)], log) as job:
        until(lambda: "more: hangscope analyze" in log.read_text(), seen=log.read_text)
        assert "moving again" not in log.read_text()
        (tmp_path / "go").touch()
        until(lambda: "[hangscope] moving again after " in log.read_text(), seen=log.read_text)
        (tmp_path / "end").touch()
        for rank in job:
            rank.wait(60)
    (said,) = [line for line in log.read_text().splitlines() if "moving again" in line]
    assert said.endswith(": all ranks have ended with status 0") == (then == "ends at once")
