"""Remote calls and nothing else: one rank hands out work, the others answer."""

from __future__ import annotations

import os

import torch.distributed.rpc as rpc
from common import FAULT_STEP, arguments, wait_for_ever, warm_up

args = arguments("handler")


def score(step: int) -> int:
    """What rank 0 asks for; the guilty rank reads the model from a mount that is gone."""
    if args.fault == "handler" and step == FAULT_STEP and int(os.environ["RANK"]) == args.rank:
        wait_for_ever()
    return step * step


def main() -> None:
    """Rank 0 asks every other rank in every step."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world)
    warm_up()
    if rank == 0:
        for step in range(args.steps):
            for other in range(1, world):
                rpc.rpc_sync(f"worker{other}", score, args=(step,), timeout=0)
    rpc.shutdown()


main()
