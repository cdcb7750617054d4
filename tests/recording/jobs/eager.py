"""Every collective of ``torch.distributed`` as one call; ``collectives_job`` issues each."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

SIZE, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])


def ones(count: int = 8) -> torch.Tensor:
    return torch.ones(count)


EAGER = {
    "all_reduce": ("all_reduce", lambda a: dist.all_reduce(ones(), async_op=a)),
    "broadcast": ("broadcast", lambda a: dist.broadcast(ones(), 0, async_op=a)),
    "reduce": ("reduce", lambda a: dist.reduce(ones(), 1, async_op=a)),
    "all_gather": (
        "all_gather",
        lambda a: dist.all_gather([ones() for _ in range(SIZE)], ones(), async_op=a),
    ),
    "all_gather_into_tensor": (
        "_all_gather_base",
        lambda a: dist.all_gather_into_tensor(ones(8 * SIZE), ones(), async_op=a),
    ),
    "reduce_scatter": (
        "reduce_scatter",
        lambda a: dist.reduce_scatter(ones(), [ones() for _ in range(SIZE)], async_op=a),
    ),
    "reduce_scatter_tensor": (
        "_reduce_scatter_base",
        lambda a: dist.reduce_scatter_tensor(ones(), ones(8 * SIZE), async_op=a),
    ),
    "gather": (
        "gather",
        lambda a: dist.gather(
            ones(), [ones() for _ in range(SIZE)] if RANK == 0 else None, 0, async_op=a
        ),
    ),
    "scatter": (
        "scatter",
        lambda a: dist.scatter(
            ones(), [ones() for _ in range(SIZE)] if RANK == 0 else None, 0, async_op=a
        ),
    ),
    "all_to_all_single": (
        "all_to_all",
        lambda a: dist.all_to_all_single(ones(8), ones(8), async_op=a),
    ),
    "all_to_all": (
        "all_to_all",
        lambda a: dist.all_to_all([ones(4), ones(4)], [ones(4), ones(4)], async_op=a),
    ),
    "barrier": ("barrier", lambda a: dist.barrier(async_op=a)),
    "all_reduce_coalesced": (
        "allreduce_coalesced",
        lambda a: dist.all_reduce_coalesced([ones(), ones(3)], async_op=a),
    ),
    "all_gather_coalesced": (
        "all_gather_coalesced",
        lambda a: dist.all_gather_coalesced([[ones()] for _ in range(SIZE)], [ones()], async_op=a),
    ),
}
"""By its name: what is on record, and the call, which takes whether it is to return at once."""
