"""A healthy job that has long waits by nature: what `tools.early` must hear nothing about.

``--life`` says which: *compile* (torch.compile on every rank, on one rank much later than on the
others, or again in the middle), *evaluate* (one rank for all, or all on shards of unequal size),
*checkpoint* (one rank writes while the others wait, or every rank its own shard), *uneven* (steps
of very different length, a random rank the longest) and *pause* (all ranks together wait for data).
How long it takes is drawn from ``--seed`` and the same on all ranks.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--life", default="uneven")
parser.add_argument("--seed", default="0")
parser.add_argument("--most", type=float, default=60.0, help="longest pause, s")
args = parser.parse_args()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DICE = random.Random(args.seed)
OWN = random.Random(f"{args.seed}/{RANK}")
STEPS = DICE.randrange(20, 60)
AT = sorted({DICE.randrange(0, STEPS), DICE.randrange(STEPS // 2, STEPS)})
"""The steps after which the long part comes."""
LONG_S = DICE.uniform(10.0, args.most)
ONE = DICE.randrange(WORLD)
TOGETHER = DICE.random() < 0.5
"""Whether every rank does its share, rather than one of them all."""


def work(seconds: float) -> None:
    """Compute for some CPU seconds' worth of wall time."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        torch.randn(64, 64) @ torch.randn(64, 64)


def evaluate(model: nn.Module) -> None:
    """An evaluation: forward passes only, then everybody meets."""
    share = LONG_S * OWN.uniform(0.6, 1.0) if TOGETHER else LONG_S if RANK == 0 else 0.0
    with torch.no_grad():
        until_s = time.monotonic() + share
        while time.monotonic() < until_s:
            model(torch.randn(64, 16))
    dist.barrier()


def save(model: nn.Module) -> None:
    """A checkpoint to slow storage, in pieces that take their time; then everybody meets."""
    share = LONG_S * OWN.uniform(0.6, 1.0) if TOGETHER else LONG_S if RANK == 0 else 0.0
    if share:
        with tempfile.TemporaryDirectory() as name:
            path, until_s = Path(name) / "shard", time.monotonic() + share
            torch.save(model.state_dict(), path)
            with path.open("ab", buffering=0) as file:
                while time.monotonic() < until_s:
                    upload(file)
    dist.barrier()


def upload(file: object) -> None:
    """One piece of a shard, at the pace of a remote store."""
    file.write(bytes(1 << 16))  # type: ignore[attr-defined]
    os.fsync(file.fileno())  # type: ignore[attr-defined]
    time.sleep(0.2)


def compiled(width: int) -> None:
    """Code that was not compiled for this shape before: seconds of work for the compiler."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(3)))
    torch.compile(net, dynamic=False)(torch.randn(2, width)).sum().backward()


def interlude(model: DistributedDataParallel, number: int) -> None:
    """The long part of this life."""
    if args.life == "evaluate":
        evaluate(model.module)
    elif args.life == "checkpoint":
        save(model.module)
    elif args.life == "compile" and (TOGETHER or RANK == ONE):
        compiled(16 + 8 * number + 8 * DICE.randrange(8))
    elif args.life == "pause":
        time.sleep(LONG_S)
        time.sleep(OWN.uniform(0.0, 0.5))


def main() -> None:
    """Train."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=1800))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16)))
    for step in range(STEPS):
        if args.life == "uneven":
            length_s = min(20.0, 0.05 * OWN.lognormvariate(0.0, 1.6))
            (work if OWN.random() < 0.5 else time.sleep)(length_s)
        else:
            time.sleep(0.03 * OWN.uniform(0.5, 2.0))
        if step in AT:
            interlude(model, AT.index(step))
        model(torch.randn(8, 16)).square().mean().backward()
        if step % 5 == 0:
            dist.all_reduce(torch.zeros(1))  # the loss, for the log
    dist.barrier()
    dist.destroy_process_group()
    # The reducer of `model` is the last to hold its group, whose end joins Gloo's thread without
    # releasing the GIL, for which that thread waits if it is just freeing a tensor (torch 2.13).
    time.sleep(0.02)


main()
