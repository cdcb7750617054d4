"""Helper processes of ranks that form their own world belong to one run."""

from __future__ import annotations

import subprocess
import sys

from tests.real_jobs import environment

ASK = (
    "import os; from hangscope.recording import identity; "
    "print(identity.run_id_from_environment(os.environ))"
)
START = """
import os, subprocess, sys
own = dict(os.environ, MASTER_PORT=sys.argv[1])
sys.stdout.write(subprocess.check_output([sys.executable, "-c", sys.argv[2]], env=own, text=True))
"""


def _run_of_helper(port: str) -> str:
    """The run id in a process that a torchrun rank has started with another port."""
    rank = environment(
        TORCHELASTIC_RUN_ID="none", MASTER_ADDR="localhost", MASTER_PORT="29500", RANK="0",
        WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GROUP_WORLD_SIZE="1",
    )  # fmt: skip
    command = [sys.executable, "-c", START, port, ASK]
    return subprocess.check_output(command, env=rank, text=True).strip()


def test_helpers_of_different_ranks_agree_by_their_port() -> None:
    assert _run_of_helper("4711") == _run_of_helper("4711") != _run_of_helper("4712")


def test_ranks_started_by_a_rank_use_their_parents_identity() -> None:
    assert _run_of_helper("29500") != _run_of_helper("29500")
