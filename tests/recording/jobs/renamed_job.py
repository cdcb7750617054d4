"""Ranks that give themselves other numbers than their launcher did, after torch was imported.

``HOW``: by their ``variables`` or by ``arguments``. ``FAULT``: what is wrong with the numbers.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

launched = int(os.environ["LOCAL_RANK"])
size = int(os.environ["WORLD_SIZE"])
fault = os.environ["FAULT"]
rank, world = size - 1 - launched, size  # a program may count as it likes
if fault == "size" and rank == 2:
    world = size + 1
if fault == "twice" and rank == 2:
    rank = 1

timeout = timedelta(seconds=5)
arguments: dict[str, Any] = {}
if os.environ["HOW"] == "variables":
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
else:
    arguments = {"rank": rank, "world_size": world}
if fault == "elsewhere" and rank == 1:
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
if fault == "late" and rank == 0:
    time.sleep(60)  # the others have said who they are
dist.init_process_group("gloo", timeout=timeout, **arguments)
dist.all_reduce(torch.ones(4))
if fault == "killed" and rank == 0:
    time.sleep(3)  # the monitor has seen everybody
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
