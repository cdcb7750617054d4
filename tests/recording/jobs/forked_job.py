"""Processes that a launcher takes for ranks, and that only start the ranks: by fork or by spawn."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank: int, size: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        time.sleep(300)
    dist.all_reduce(torch.ones(4))


def spawned(index: int, launched: int, size: int) -> None:
    train(launched * 2 + index, size * 2)


if __name__ == "__main__":
    launched, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if os.environ["HOW"] == "spawn":
        mp.spawn(spawned, (launched, size), nprocs=2)
    else:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            train(launched, size)
            os._exit(0)
