"""Hangs outside collectives: in the store, under a tag, in a group of another thread."""

from __future__ import annotations

import datetime
import os
import threading
import time

import torch
import torch.distributed as dist
from common import FAULT_STEP, arguments, timeout, wait_for_ever, warm_up

args = arguments(
    "setter-asleep", "store-barrier", "key-forgotten", "tag", "side-thread", "caught",
)  # fmt: skip


def key_of(step: int) -> str:
    """Under which the learning rate of a step is published."""
    return f"rate/{step}"


def publish(store: dist.Store, step: int, rank: int, guilty: bool) -> None:
    """The guilty rank writes a checkpoint and says so; rank 0 waits for that."""
    if rank == args.rank:
        if guilty:
            wait_for_ever()
        store.set(key_of(step), "written")
    elif rank == 0:
        store.get(key_of(step))


def follow(store: dist.Store, step: int, rank: int) -> None:
    """One rank says how fast to learn, and once forgets to."""
    if rank != args.rank:
        store.get(key_of(step))
    elif step != FAULT_STEP:
        store.set(key_of(step), "0.1")


def meet(store: dist.Store, step: int, world: int) -> None:
    """A barrier made of a counter and a key."""
    if store.add(f"arrived/{step}", 1) == world:
        store.set(f"all/{step}", "there")
    store.get(f"all/{step}")


def pass_around(rank: int, world: int, guilty: bool) -> None:
    """To the next rank, from the one before."""
    sent = dist.isend(torch.ones(4), (rank + 1) % world, tag=7 if guilty else 0)
    dist.recv(torch.zeros(4), (rank - 1) % world)
    sent.wait()


def measure(group: dist.ProcessGroup, rank: int) -> None:
    """A thread that averages a sensor's values."""
    for step in range(10_000):
        if rank == args.rank and step == FAULT_STEP:
            wait_for_ever()
        dist.all_reduce(torch.ones(1), group=group)
        time.sleep(0.05)


def main() -> None:
    """Steps of an all-reduce and a meeting of some other kind."""
    short = datetime.timedelta(seconds=1.5)
    dist.init_process_group("gloo", timeout=short if args.fault == "caught" else timeout())
    warm_up()
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world, False)
    store.set_timeout(datetime.timedelta(hours=1))
    if args.fault == "side-thread":
        sensors = dist.new_group(group_desc="sensors")
        threading.Thread(target=measure, args=(sensors, rank), daemon=True).start()
    steps = 10_000 if args.fault == "side-thread" else args.steps
    for step in range(steps):
        guilty = rank == args.rank and step == FAULT_STEP
        if guilty and args.fault in ("store-barrier", "caught"):
            wait_for_ever()
        try:
            dist.all_reduce(torch.ones(16))
        except RuntimeError:
            if args.fault != "caught":
                raise
            wait_for_ever()  # "it will come back"
        if args.fault == "setter-asleep":
            publish(store, step, rank, guilty)
        elif args.fault == "key-forgotten":
            follow(store, step, rank)
        elif args.fault == "store-barrier":
            meet(store, step, world)
        elif args.fault == "tag":
            pass_around(rank, world, guilty)
        time.sleep(0.05)
    dist.destroy_process_group()


main()
