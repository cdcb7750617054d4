"""Trainers (a world of two) and an engine (a world of its own) that share a group made by hand.

So do the trainers with each other. The engine never comes to what trainer 0 issues in theirs.
"""

from __future__ import annotations

import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d


def by_hand(name: str, place: int, size: int, store: dist.Store) -> dist.ProcessGroup:
    """As trainers of language models make the group through which engines get their weights."""
    limit = datetime.timedelta(seconds=60)
    group, _ = c10d._new_process_group_helper(
        size, place, [], dist.Backend("gloo"), dist.PrefixStore(name, store), name, timeout=limit
    )
    c10d._world.pg_group_ranks[group] = {i: i for i in range(size)}
    return group


def main(port: int) -> None:
    engine = "ENGINE" in os.environ
    first = not engine and os.environ["RANK"] == "0"
    store = dist.TCPStore("127.0.0.1", port, None, first, wait_for_workers=False)
    if engine:
        by_hand("weights", 1, 2, store)
        store.set("met", "")
        store.wait(["nobody sets this"])
    dist.init_process_group("gloo")
    both = by_hand("pair", dist.get_rank(), 2, store)
    dist.all_reduce(torch.ones(4), group=both)
    if first:
        weights = by_hand("weights", 0, 2, store)
        store.wait(["met"])
        dist.all_reduce(torch.ones(4), group=weights)
    dist.barrier()


main(int(sys.argv[1]))
