"""Fully sharded data parallelism (FSDP2), plain or with replicas, and tensor parallelism."""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from common import FAULT_STEP, Block, tokens, wait_for_ever, warm_up
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=["fsdp", "hsdp", "tp"], default="fsdp")
FAULTS = ["none", "loader", "skip-layer", "kill", "raise", "eval-guard"]
parser.add_argument("--fault", default="none", choices=FAULTS)
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--steps", type=int, default=6)
args = parser.parse_args()


class Mlp(nn.Module):
    """Shape (batch, 16) to (batch, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        return self.down(self.up(x).relu())


def build(world: int) -> nn.ModuleList:
    """The model, wrapped block by block."""
    torch.manual_seed(0)
    if args.kind == "tp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        layers = nn.ModuleList(Mlp() for _ in range(3))
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in layers:
            parallelize_module(block, mesh["tp"], plan)
            fully_shard(block, mesh=mesh["dp"])
        return layers
    if args.kind == "hsdp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    layers = nn.ModuleList([Block(), Mlp(), Block()])
    for block in layers:
        # Every block is a root of its own, and a root keeps its parameters unless it is told.
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    return layers


def read_shard(guilty: bool) -> None:
    """From a file server that does not answer."""
    if guilty and args.fault == "loader":
        wait_for_ever()
    if guilty and args.fault == "raise":
        raise OSError(5, "Input/output error: '/data/shard-0007.tar'")


def evaluate(layers: nn.ModuleList) -> None:
    """A forward pass, which under FSDP is a collective."""
    with torch.no_grad():
        x = tokens(0, 0)
        for block in layers:
            x = block(x)


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    warm_up()
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = build(world)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    for step in range(args.steps):
        guilty = rank == args.rank and step == FAULT_STEP
        read_shard(guilty)
        x = tokens(step, rank if args.kind != "tp" else rank // 2)
        for index, block in enumerate(layers):
            if guilty and args.fault == "skip-layer" and index == 1:
                continue
            if guilty and args.fault == "kill" and index == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            x = block(x)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if guilty and args.fault == "eval-guard":
            evaluate(layers)
        time.sleep(0.02)
    dist.barrier()
    dist.destroy_process_group()


main()
