"""A pipeline: every rank is a stage that receives, computes and sends, forward and backward."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from common import FAULT_STEP, Block, arguments, wait_for_ever, warm_up

args = arguments(
    "skip-send", "skip-recv", "last-send", "last-recv", "circle", "asleep", "kill", "batch-skip",
    "drop-send",
)  # fmt: skip
MICRO_BATCHES = 2


def forward(stage: Block, rank: int, world: int, step: int) -> None:
    """Activations go down the pipeline."""
    guilty = rank == args.rank and step == FAULT_STEP
    fault = args.fault.replace("last", "skip")
    for micro in range(MICRO_BATCHES):
        last = micro == MICRO_BATCHES - 1
        x = torch.zeros(4, 16)
        if fault == "drop-send" and step == FAULT_STEP:
            time.sleep(0.2 * rank)  # the next stage is late: the message cannot go out at once
        if rank > 0 and not (guilty and last and fault == "skip-recv"):
            dist.recv(x, src=rank - 1)
        y = compute(stage, x, guilty)
        if guilty and last and fault == "drop-send":
            dist.isend(y, dst=rank + 1)
        elif rank < world - 1 and not (guilty and last and fault == "skip-send"):
            dist.send(y, dst=rank + 1)


def compute(stage: Block, x: torch.Tensor, guilty: bool) -> torch.Tensor:
    """One stage."""
    if guilty and args.fault == "asleep":
        wait_for_ever()
    if guilty and args.fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    with torch.no_grad():
        return stage(x)


def backward(rank: int, world: int, step: int) -> None:
    """Gradients come back up."""
    for _ in range(MICRO_BATCHES):
        gradient = torch.zeros(4, 16)
        if rank < world - 1:
            dist.recv(gradient, src=rank + 1)
        if rank > 0:
            dist.send(gradient, dst=rank - 1)


def exchange(rank: int, world: int, step: int) -> None:
    """Halo exchange with both neighbours in one batch."""
    operations = []
    for other in ((rank - 1) % world, (rank + 1) % world):
        if args.fault == "batch-skip" and rank == args.rank and step == FAULT_STEP:
            continue
        operations.append(dist.P2POp(dist.isend, torch.ones(4), other))
        operations.append(dist.P2POp(dist.irecv, torch.zeros(4), other))
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def rotate(rank: int, world: int) -> None:
    """Pass keys around the ring, receiving first."""
    keys = torch.zeros(16)
    dist.recv(keys, src=(rank - 1) % world)
    dist.send(keys, dst=(rank + 1) % world)


def main() -> None:
    """Forward, backward, and once in a while a sum over all."""
    dist.init_process_group("gloo")
    warm_up()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = Block()
    for step in range(args.steps):
        forward(stage, rank, world, step)
        if args.fault.startswith("last") and step == FAULT_STEP:
            break  # a pass without gradients: the end of an evaluation
        backward(rank, world, step)
        if args.fault == "circle" and step == FAULT_STEP:
            rotate(rank, world)
        if args.fault == "batch-skip" and world > 2:
            exchange(rank, world, step)
        if step % 4 == 3:
            dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
    dist.barrier()
    dist.destroy_process_group()


main()
