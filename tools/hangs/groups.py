"""Several groups at once: rows and columns of a grid of ranks, and a group of all."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import FAULT_STEP, arguments, wait_for_ever, warm_up

args = arguments("crossed", "cascade", "sub-op", "chain", "crash", "crossed-half")


def grid(rank: int, world: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's row (``tp``) and column (``dp``) of a grid two wide."""
    mine: dict[str, dist.ProcessGroup] = {}
    for start in range(0, world, 2):
        group = dist.new_group([start, start + 1], group_desc=f"tp{start // 2}")
        if rank in (start, start + 1):
            mine["tp"] = group
    for column in range(2):
        group = dist.new_group(list(range(column, world, 2)), group_desc=f"dp{column}")
        if rank % 2 == column:
            mine["dp"] = group
    return mine["tp"], mine["dp"]


def layer(tp: dist.ProcessGroup) -> None:
    """Partial sums of a row-parallel layer."""
    dist.all_reduce(torch.ones(32), group=tp)


def gradients(dp: dist.ProcessGroup) -> None:
    """Average over replicas."""
    dist.all_reduce(torch.ones(64), group=dp)


def norm() -> None:
    """Global gradient norm."""
    dist.all_reduce(torch.ones(1))


def tokenize() -> None:
    """Wait for a worker that is gone."""
    wait_for_ever()


def main() -> None:
    """Forward, gradients, norm."""
    dist.init_process_group("gloo")
    warm_up()
    rank, world = dist.get_rank(), dist.get_world_size()
    tp, dp = grid(rank, world)
    for step in range(args.steps):
        here = step == FAULT_STEP
        guilty = here and rank == args.rank
        if guilty and args.fault in ("cascade", "chain"):
            tokenize()
        if guilty and args.fault == "crash":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if here and args.fault == "crossed-half":
            first, second = (tp, None) if rank % 2 else (None, tp)
            dist.all_reduce(torch.ones(4), group=first)
            dist.all_reduce(torch.ones(4), group=second)
        elif guilty and args.fault == "crossed":
            norm()
            gradients(dp)
        else:
            layer(tp)
            if guilty and args.fault == "sub-op":
                dist.broadcast(torch.ones(64), src=rank, group=dp)
            else:
                gradients(dp)
            norm()
        time.sleep(0.02)
    dist.destroy_process_group()


main()
