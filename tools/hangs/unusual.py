"""Hangs in which the first thing one sees is not the cause."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import FAULT_STEP, arguments, wait_for_ever, warm_up

args = arguments(
    "feeder", "splits", "coalesced", "pair-size", "checkpoint", "data-server", "two-threads"
)


def feed(samples: queue.Queue[torch.Tensor], rank: int) -> None:
    """The thread that prepares batches."""
    for step in range(args.steps):
        if args.fault == "feeder" and rank == args.rank and step == FAULT_STEP:
            raise ValueError("shard 4 is cut off")
        samples.put(torch.ones(16))


def exchange(rank: int, world: int, guilty: bool) -> None:
    """Tokens to their experts; the guilty rank has counted wrong."""
    sent, expected = [2] * world, [2] * world
    if guilty:
        sent[0], sent[-1] = 1, 3
    tokens = torch.ones(sum(sent))
    dist.all_to_all_single(torch.zeros(sum(expected)), tokens, expected, sent)


def reduce_two(guilty: bool) -> None:
    """Two gradients in one call; the guilty rank has only one."""
    dist.all_reduce_coalesced([torch.ones(3)] if guilty else [torch.ones(3), torch.ones(4)])


def pass_on(rank: int, guilty: bool) -> None:
    """From rank 0 to the guilty rank, which expects less."""
    if rank == 0:
        dist.send(torch.ones(300), dst=args.rank)
    elif rank == args.rank:
        dist.recv(torch.zeros(200 if guilty else 300), src=0)


class Unwritable:
    """A part of the state that cannot be saved."""

    def __reduce__(self) -> Any:
        raise OSError("disk quota exceeded")


def save(guilty: bool) -> None:
    """A distributed checkpoint: every rank raises when one of them fails."""
    state: dict[str, Any] = {"weights": torch.ones(4)}
    if guilty:
        state["tokenizer"] = Unwritable()
    with tempfile.TemporaryDirectory() as place:
        dcp.save(state, checkpoint_id=place)


def lose_the_data_server() -> None:
    """A connection of the rank's own, broken."""
    raise ConnectionResetError(104, "Connection reset by peer")


def beat(group: dist.ProcessGroup) -> None:
    """A thread with a group of its own, which goes on whatever the main thread does."""
    while True:
        dist.all_reduce(torch.ones(1), group=group)
        time.sleep(0.1)


def main() -> None:
    """Steps of an all-reduce and whatever the fault needs."""
    dist.init_process_group("gloo")
    warm_up()
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.fault == "two-threads":
        heartbeat = dist.new_group(group_desc="heartbeat")
        threading.Thread(target=beat, args=(heartbeat,), daemon=True).start()
    samples: queue.Queue[torch.Tensor] = queue.Queue()
    threading.Thread(target=feed, args=(samples, rank), name="feeder", daemon=True).start()
    for step in range(args.steps):
        guilty = rank == args.rank and step == FAULT_STEP
        if guilty and args.fault == "data-server":
            lose_the_data_server()
        if guilty and args.fault == "two-threads":
            wait_for_ever()
        if args.fault == "splits":
            exchange(rank, world, guilty)
        if args.fault == "coalesced":
            reduce_two(guilty)
        if args.fault == "pair-size":
            pass_on(rank, guilty)
        if args.fault == "checkpoint" and step == FAULT_STEP:
            save(guilty)
        dist.all_reduce(samples.get())
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()


main()
