"""Members of a group that do not issue the same: one fault for each way to differ."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import FAULT_STEP, arguments, timeout, wait_for_ever, warm_up

args = arguments(
    "op", "shape", "dtype", "root", "reduce-op", "extra", "skipped", "half", "gather-scatter",
    "splits", "object", "batch-size", "three-ways", "async-order",
)  # fmt: skip


def mix(step: int, rank: int) -> None:
    """One step's communication."""
    world = dist.get_world_size()
    here = step == FAULT_STEP
    guilty = here and rank == args.rank
    score = torch.full((8,), float(rank))
    if guilty and args.fault == "op":
        dist.broadcast(score, src=0)
    elif guilty and args.fault == "shape":
        dist.all_reduce(torch.zeros(12))
    elif guilty and args.fault == "dtype":
        dist.all_reduce(torch.zeros(8, dtype=torch.float64))
    elif guilty and args.fault == "reduce-op":
        dist.all_reduce(score, op=dist.ReduceOp.MAX)
    elif guilty and args.fault == "gather-scatter":
        reduce_scatter(world)
    elif guilty and args.fault == "skipped":
        pass
    elif here and args.fault == "half" and rank >= world // 2:
        dist.broadcast(score, src=world // 2)
    elif here and args.fault == "three-ways" and rank in (args.rank, args.rank + 1):
        dist.all_reduce(torch.zeros(8 + rank))
    else:
        dist.all_reduce(score)
    if guilty and args.fault == "extra":
        dist.all_reduce(torch.zeros(3))
    root = args.rank if guilty and args.fault == "root" else 0
    dist.broadcast(score, src=root)
    gather(world)
    exchange(world, rank, guilty)
    if args.fault == "object":
        publish(rank, guilty)


def reduce_scatter(world: int) -> None:
    """Sum of each rank's part."""
    dist.reduce_scatter_tensor(torch.zeros(4), torch.zeros(4 * world))


def gather(world: int) -> None:
    """Everybody's part."""
    dist.all_gather_into_tensor(torch.zeros(4 * world), torch.zeros(4))


def exchange(world: int, rank: int, guilty: bool) -> None:
    """Tokens to experts: every pair exchanges two rows."""
    splits = [2] * world
    if guilty and args.fault == "splits":
        splits[0], splits[1] = 1, 3
    send = torch.zeros(sum(splits))
    dist.all_to_all_single(torch.zeros(2 * world), send, [2] * world, splits)


def publish(rank: int, guilty: bool) -> None:
    """Collect a dictionary from every rank."""
    if guilty:
        wait_for_ever()
    found: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"rank": rank})


def main() -> None:
    """Steps of nothing but communication."""
    dist.init_process_group("gloo", timeout=timeout())
    warm_up()
    rank = dist.get_rank()
    for step in range(args.steps):
        mix(step, rank)
        time.sleep(0.02)
    dist.barrier()
    dist.destroy_process_group()


main()
