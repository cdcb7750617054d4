"""Reduces one chunk: the collective first, then the arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangscope.toolkit.reductions.arithmetic import TORCH, TREE, ordered_sum, tree_sum

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


def reduce_chunk(
    chunk: torch.Tensor, mode: str, group: dist.ProcessGroup | None, size: int
) -> torch.Tensor:
    """The sum of a contiguous chunk over the group's ``size`` members, as a new tensor."""
    import torch
    import torch.distributed as dist

    # Complex numbers are added component by component; not every backend supports them.
    real = torch.view_as_real(chunk.resolve_conj()) if chunk.is_complex() else chunk
    if mode == TORCH:
        total = real.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
    else:
        gathered = torch.empty((size, *real.shape), dtype=real.dtype, device=real.device)
        # Every backend sends bytes unchanged, whatever dtypes it supports.
        dist.all_gather(
            [part.view(torch.uint8) for part in gathered],
            real.contiguous().view(torch.uint8),
            group=group,
        )
        parts = list(gathered)
        total = tree_sum(parts) if mode == TREE else ordered_sum(parts)
    return torch.view_as_complex(total) if chunk.is_complex() else total
