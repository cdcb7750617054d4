"""Ranks that part from the others outside the common loop: threads, barriers, halos, groups."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist
from common import FAULT_STEP, arguments, timeout, warm_up

args = arguments(
    "dead-thread", "two-barriers", "neighbour", "group-left-out", "groups-swapped", "micro-batches",
)  # fmt: skip

MICRO_BATCHES = 4


class Reporter(threading.Thread):
    """Averages a metric over the ranks, in a group of its own."""

    def __init__(self, group: dist.ProcessGroup, rank: int) -> None:
        super().__init__(name="reporter", daemon=True)
        self._group = group
        self._rank = rank

    def run(self) -> None:
        values = {"loss": 1.0}
        for step in range(10_000):
            if self._rank == args.rank and step == FAULT_STEP:
                values.clear()
            dist.all_reduce(torch.tensor([values["loss"]]), group=self._group)
            time.sleep(0.05)


def halo(step: int, rank: int, world: int) -> None:
    """Swap edges with both neighbours; the guilty rank asks the wrong one once."""
    work = []
    for side in (-1, 1):
        other = rank + side
        if not 0 <= other < world:
            continue
        wrong = side < 0 and rank == args.rank and step == FAULT_STEP
        source = other - 1 if wrong else other
        work += [
            dist.P2POp(dist.isend, torch.ones(8), other),
            dist.P2POp(dist.irecv, torch.empty(8), source),
        ]
    for request in dist.batch_isend_irecv(work):
        request.wait()


def stage(rank: int, world: int) -> None:
    """All forward passes, then all backward passes; the guilty rank expects one more."""
    count = MICRO_BATCHES + (rank == args.rank)
    for _ in range(count):
        if rank > 0:
            dist.recv(torch.empty(16), rank - 1)
        if rank < world - 1:
            dist.send(torch.ones(16), rank + 1)
    for _ in range(count):
        if rank < world - 1:
            dist.recv(torch.empty(16), rank + 1)
        if rank > 0:
            dist.send(torch.ones(16), rank - 1)


def make_groups(rank: int, world: int) -> dist.ProcessGroup:
    """A group of some and one of all; the guilty rank leaves the first out, as no member of it."""
    if rank != args.rank:
        dist.new_group([0, 1], group_desc="some")
    return dist.new_group(list(range(world)), group_desc="all")


def make_halves(rank: int, world: int) -> dist.ProcessGroup:
    """A group for each half of the ranks; the guilty rank makes the second one first."""
    halves = [list(range(world // 2)), list(range(world // 2, world))]
    made = [dist.new_group(half) for half in (halves[::-1] if rank == args.rank else halves)]
    return next(group for group in made if group is not dist.GroupMember.NON_GROUP_MEMBER)


def synchronize(rank: int) -> None:
    """Two ways to wait for everybody that never meet."""
    if rank == args.rank:
        dist.barrier()
    else:
        dist.monitored_barrier(timeout=timeout())


def main() -> None:
    """Steps of an all-reduce, and what the fault is about."""
    dist.init_process_group("gloo", timeout=timeout())
    warm_up()
    rank, world = dist.get_rank(), dist.get_world_size()
    reporter = None
    if args.fault == "dead-thread":
        reporter = Reporter(dist.new_group(group_desc="metrics"), rank)
        reporter.start()
    for step in range(args.steps):
        if args.fault == "micro-batches":
            stage(rank, world)
        dist.all_reduce(torch.ones(16))
        if args.fault == "neighbour":
            halo(step, rank, world)
        if args.fault == "two-barriers" and step == FAULT_STEP:
            synchronize(rank)
        if args.fault == "group-left-out" and step == FAULT_STEP:
            make_groups(rank, world)
        if args.fault == "groups-swapped" and step == FAULT_STEP:
            dist.all_reduce(torch.ones(8), group=make_halves(rank, world))
        if reporter is not None and step == FAULT_STEP and rank == 0:
            reporter.join()
        time.sleep(0.05)
    dist.destroy_process_group()


main()
