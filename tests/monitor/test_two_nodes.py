"""Two nodes that share nothing but the job's own store: the verdict names a rank of the other node.

Two launchers with separate run directories stand for two hosts without a shared file system.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.ports import free_port

pytestmark = pytest.mark.timed

TIMEOUT_S = 5.0


_JOB = """
import time, torch, torch.distributed as dist

def load_batch(step):
    if step == 6 and dist.get_rank() == 2:
        time.sleep(3600)

dist.init_process_group("gloo")
for step in range(12):
    load_batch(step)
    dist.all_reduce(torch.ones(4))
"""


def start_node(node: int, port: int, place: Path, how: str) -> subprocess.Popen[bytes]:
    place.mkdir()
    script = place / "job.py"
    script.write_text(_JOB)
    in_front = [sys.executable, "-m", "hangscope", "run", "--"] if how == "run" else []
    command = [
        *in_front, sys.executable, "-m", "torch.distributed.run",
        "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2", "--master-addr=127.0.0.1",
        f"--master-port={port}", str(script),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "HANGSCOPE": "0" if in_front else "1",
        "HANGSCOPE_DIR": str(place / "run"),
        "HANGSCOPE_TIMEOUT": str(TIMEOUT_S),
        "HANGSCOPE_ON_HANG": "report" if in_front else "kill",
        "OMP_NUM_THREADS": "1",
    }
    with open(place / "log", "wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


@pytest.mark.parametrize("how", [pytest.param("variable", marks=pytest.mark.slow), "run"])
def test_rank_on_another_node_is_named(tmp_path: Path, how: str) -> None:
    port = free_port()
    places = [tmp_path / "node0", tmp_path / "node1"]
    nodes = [start_node(number, port, place, how) for number, place in enumerate(places)]
    logs = ["", ""]
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            logs = [(place / "log").read_text(errors="replace") for place in places]
            if "[hangscope] more:" in logs[0] and "log of node 0" in logs[1]:
                break
            time.sleep(0.25)
        if how == "variable":
            for node in nodes:  # what the monitors end, the launchers give up
                assert node.wait(30) != 0
    finally:
        for node in nodes:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            node.wait(30)
    verdict = "[hangscope] Rank 2 never joined all_reduce"
    assert verdict in logs[0], logs
    assert "ranks 0 1 3" in logs[0], "ranks of both nodes are in one report"
    assert "in load_batch" in logs[0], "the other node's stack is there"
    assert logs[0].count("[hangscope] more:") == 1
    assert verdict in logs[1]
    assert "[hangscope] more:" not in logs[1], "one voice a cause"
    ended = [place.joinpath("log").read_text(errors="replace") for place in places]
    killed = ["HANGSCOPE_ON_HANG=kill: ending the job" in log for log in ended]
    assert killed == [how == "variable"] * 2
    assert not list((places[0] / "run").glob("rank_2.ring")), "they share no directory"
