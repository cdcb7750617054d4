"""Two nodes that share nothing but the job's own store: the verdict names a rank of the other node.

Two run directories stand for two hosts without a shared file system.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real_jobs import beside, environment, worlds
from tests.waiting import until
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


def start_node(node: int, port: int, place: Path) -> subprocess.Popen[bytes]:
    """torchrun under ``hangscope run``."""
    place.mkdir()
    script = place / "job.py"
    script.write_text(_JOB)
    command = [
        sys.executable, "-m", "hangscope", "run", "--", sys.executable, "-m",
        "torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2",
        "--master-addr=127.0.0.1", f"--master-port={port}", str(script),
    ]  # fmt: skip
    settings = environment(HANGSCOPE_DIR=str(place / "run"), HANGSCOPE_TIMEOUT=str(TIMEOUT_S))
    with open(place / "log", "wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=settings, start_new_session=True
        )


def assert_other_node_is_named(logs: list[str]) -> None:
    verdict = "[hangscope] Rank 2 never joined all_reduce"
    assert verdict in logs[0], logs
    assert "ranks 0 1 3" in logs[0], "ranks of both nodes are in one report"
    assert "in load_batch" in logs[0], "the other node's stack is there"
    assert logs[0].count("[hangscope] more:") == 1
    assert verdict in logs[1]
    assert "[hangscope] more:" not in logs[1], "one voice a cause"


def test_rank_on_another_node_is_named_and_all_are_ended(tmp_path: Path) -> None:
    script, places = tmp_path / "job.py", [tmp_path / "node0", tmp_path / "node1"]
    script.write_text(_JOB)
    with contextlib.ExitStack() as running:
        nodes = []
        world = worlds(4)
        for node, place in enumerate(places):
            place.mkdir()
            env = environment(
                HANGSCOPE="1", HANGSCOPE_DIR=str(place / "run"), HANGSCOPE_TIMEOUT=str(TIMEOUT_S),
                HANGSCOPE_ON_HANG="kill", LOCAL_WORLD_SIZE="2", GROUP_RANK=str(node),
                GROUP_WORLD_SIZE="2",
            )  # fmt: skip
            here = [
                world[2 * node + local] | env | {"LOCAL_RANK": str(local)} for local in range(2)
            ]
            command = [sys.executable, str(script)]
            nodes.append(running.enter_context(beside(command, here, place / "log")))
        for rank in itertools.chain(*nodes):
            assert rank.wait(90.0) != 0
        logs = [(place / "log").read_text(errors="replace") for place in places]
    assert_other_node_is_named(logs)
    assert all("HANGSCOPE_ON_HANG=kill: ending the job" in log for log in logs)
    assert not list((places[0] / "run").glob("rank_2.ring")), "they share no directory"


@pytest.mark.slow
def test_rank_on_another_node_is_named_by_the_run_command(tmp_path: Path) -> None:
    port = free_port()
    places = [tmp_path / "node0", tmp_path / "node1"]
    nodes = [start_node(number, port, place) for number, place in enumerate(places)]

    def logs() -> list[str]:
        return [(place / "log").read_text(errors="replace") for place in places]

    try:
        until(
            lambda: "[hangscope] more:" in logs()[0] and "log of node 0" in logs()[1],
            120.0,
            seen=logs,
        )
    finally:
        for node in nodes:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            node.wait(30)
    assert_other_node_is_named(logs())
