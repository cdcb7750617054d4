"""A device that never finishes, and a watchdog that notices: NCCL's own dump is what is left."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from tools.gpus import take_gpu

FOREVER_CYCLES = 10**15

take_gpu()
dist.init_process_group("nccl", timeout=timedelta(seconds=float(sys.argv[1])))
tensor = torch.ones(8, device="cuda")
for _ in range(3):
    dist.all_reduce(tensor)
torch.cuda.synchronize()
torch.cuda._sleep(FOREVER_CYCLES)
dist.all_reduce(tensor)
torch.cuda.synchronize()  # the watchdog ends the process here
