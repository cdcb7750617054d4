"""Recording changes nothing: the trained weights are the same to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch


def train(weights: Path, directory: Path, recording: bool) -> dict[str, torch.Tensor]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HANGSCOPE")}
    if recording:
        environment |= {"HANGSCOPE": "1", "HANGSCOPE_DIR": str(directory)}
    subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4",
            "-m", "hangscope.demos.train", "--steps", "8", "--weights", str(weights),
        ],
        env=environment, capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    loaded = torch.load(weights, weights_only=True)
    assert isinstance(loaded, dict)
    return loaded


def test_weights_are_bitwise_the_same_with_and_without(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with_it = train(tmp_path / "on.pt", run, recording=True)
    without = train(tmp_path / "off.pt", run, recording=False)
    assert len(list(run.glob("rank_*.ring"))) == 4, "it did record"
    assert with_it.keys() == without.keys()
    for name, value in with_it.items():
        assert torch.equal(value, without[name]), name
