"""Gives each rank of a job its GPU, also where there are fewer GPUs than ranks.

NCCL refuses two ranks on one GPU of one host, and recognises a host by its name and boot id or by
``NCCL_HOSTID``. If each rank claims to be a host of its own, NCCL connects them through sockets.
Everything is the real thing then: kernels, proxies, timeouts, dumps. Only the links are slow, and
the device gives each process its time in turn.
"""

from __future__ import annotations

import os

ALONE_ON_HOST = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
}
"""What NCCL needs to connect such ranks of one machine."""


def take_gpu() -> bool:
    """Select this rank's GPU, before any process group exists; returns whether it is shared."""
    import torch

    place, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    shared = int(os.environ["LOCAL_WORLD_SIZE"]) > gpus
    if shared:
        for name, value in ALONE_ON_HOST.items():
            os.environ.setdefault(name, value)
        os.environ["NCCL_HOSTID"] = f"rank{place}"
    torch.cuda.set_device(place % gpus)
    return shared
