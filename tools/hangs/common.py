"""What the programs in this folder share: arguments, a model, and waiting for ever."""

from __future__ import annotations

import argparse
import datetime
import os
import time

import torch
from torch import nn

FAULT_STEP = 4
STEPS = 8
FOR_EVER_S = 3600.0


def arguments(*faults: str) -> argparse.Namespace:
    """``--fault``, ``--rank`` (the guilty one) and ``--steps``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", *faults])
    parser.add_argument("--rank", type=int, default=1, help="the rank that is at fault")
    parser.add_argument("--steps", type=int, default=STEPS)
    return parser.parse_args()


class Block(nn.Module):
    """A residual block: shape (batch, 16) to (batch, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(self.up(self.norm(x)).relu())
        return result


def tokens(step: int, rank: int) -> torch.Tensor:
    """A batch: shape (4, 16)."""
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(1000 * rank + step))


def timeout() -> datetime.timedelta:
    """Of the process group; ``HANGS_TIMEOUT_S`` makes it shorter."""
    return datetime.timedelta(seconds=float(os.environ.get("HANGS_TIMEOUT_S", "1800")))


def wait_for_ever() -> None:
    """A read from a mount that is gone."""
    time.sleep(FOR_EVER_S)


def warm_up() -> None:
    """What a real job does before its first step; ``HANGS_WARM_UP_S`` seconds of it.

    A monitor needs a second to start: who dies before it has been seen by nobody.
    """
    time.sleep(float(os.environ.get("HANGS_WARM_UP_S", "0")))
