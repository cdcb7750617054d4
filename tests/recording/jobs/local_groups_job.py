"""Groups that only their members make; rank 2 makes its two in another order than the others."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
lists = [[0, 1, 2], [0, 1, 2, 3]]
for ranks in reversed(lists) if rank == 2 else lists:
    if rank in ranks:
        dist.new_group(ranks, None, None, None, True)
dist.all_reduce(torch.ones(4))
