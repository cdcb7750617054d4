"""Recording changes nothing: the trained weights are the same to the last bit."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from hangscope.demos import train as train_script
from tests.real_jobs import environment, run_each, worlds


def train(weights: Path, directory: Path, recording: bool) -> dict[str, torch.Tensor]:
    switched_on = {"HANGSCOPE": "1", "HANGSCOPE_DIR": str(directory)} if recording else {}
    job = run_each(
        [sys.executable, train_script.__file__, "--steps", "8", "--weights", str(weights)],
        [environment(**switched_on, **place) for place in worlds(2)],
        modules=["torch._dynamo"],  # which DistributedDataParallel imports
    )
    assert job.returncode == 0, job.output
    loaded = torch.load(weights, weights_only=True)
    assert isinstance(loaded, dict)
    return loaded


def test_weights_are_bitwise_equal_with_and_without_recording(tmp_path: Path) -> None:
    rings = tmp_path / "run"
    with_it = train(tmp_path / "on.pt", rings, recording=True)
    without = train(tmp_path / "off.pt", rings, recording=False)
    assert len(list(rings.glob("rank_*.ring"))) == 2, "it did record"
    assert with_it.keys() == without.keys()
    for name, value in with_it.items():
        assert torch.equal(value, without[name]), name
