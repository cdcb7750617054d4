"""Two jobs under one launcher, each with ranks from 0 and its own rendezvous."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.load import load_trace
from tests.real_jobs import environment, ranks
from tools.ports import free_port

pytestmark = pytest.mark.timed

JOB = """
import os, sys, time
import torch, torch.distributed as dist

process = int(os.environ["RANK"])
world, rank = divmod(process, 2)
address = f"tcp://127.0.0.1:{sys.argv[2 + world]}"
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
for step in range(10):
    if sys.argv[1] == "hang" and process == 3 and step == 5:
        time.sleep(300)
    dist.all_reduce(torch.ones(8 + world))  # of another size in each job
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("fault", "verdict", "culprits"),
    [
        pytest.param("none", Verdict.HEALTHY, (), marks=pytest.mark.slow),
        ("hang", Verdict.MISSING_RANK, (1,)),
    ],
)
def test_jobs_of_one_launch_are_kept_apart(
    fault: str, verdict: Verdict, culprits: tuple[int, ...], tmp_path: Path
) -> None:
    script, runs = tmp_path / "job.py", tmp_path / "runs"
    script.write_text(JOB)
    settings = {"HANGSCOPE_TIMEOUT": "3", "HANGSCOPE_ON_HANG": "kill"}
    found = ranks(
        script,
        4,
        environment(HANGSCOPE="1", HANGSCOPE_DIR=str(runs), TORCHELASTIC_RUN_ID="both", **settings),
        arguments=[fault, str(free_port()), str(free_port())],
        timeout_s=90,
    )
    assert (found.returncode == 0) is (fault == "none"), found.output
    assert any("Rank 1 never joined all_reduce #6" in line for line in found.said) is bool(culprits)
    trace = load_trace([runs])
    assert (diagnose(trace).verdict, diagnose(trace).culprits) == (verdict, culprits)
    assert any("another job of the same launch, 2 ranks that meet at" in w for w in trace.warnings)
