"""Data-parallel training with validation, logging and checkpoints: most hang classes live here."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time

import torch
import torch.distributed as dist
from common import FAULT_STEP, Block, arguments, timeout, tokens, wait_for_ever, warm_up
from torch import nn
from torch.nn.parallel import DistributedDataParallel

args = arguments(
    "unused", "unused-last", "uneven", "uneven-eval", "loader", "nan", "nan-skip", "oom", "raise",
    "kill", "segfault", "stop", "os-exit", "exit-code", "val-guard", "log-guard", "ckpt-guard",
    "ckpt-slow", "slow", "gil", "spin", "no-init", "new-group", "destroy", "destroy-kill",
    "quiescent", "crash-cleanup", "thread-lock",
)  # fmt: skip


class Model(nn.Module):
    """Two branches; the second is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(Block(), Block())
        self.branch = Block()
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, skip: bool) -> torch.Tensor:
        """Shape (batch, 16) to (batch, 4)."""
        x = self.trunk(x)
        return self.head(x if skip else self.branch(x))


def hold_the_gil() -> None:
    """Lock a mutex twice through PyDLL, which does not give the GIL back."""
    mutex = (ctypes.c_char * 64)()
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


def augment() -> None:
    """A loop whose end was forgotten."""
    x = 1
    while x:
        x = (x * 31 + 7) % 65537 or 1


def next_batch(step: int, rank: int, guilty: bool) -> torch.Tensor:
    """Shape (4, 16)."""
    if step == FAULT_STEP and guilty:
        if args.fault == "loader":
            wait_for_ever()
        if args.fault == "spin":
            augment()
        if args.fault == "raise":
            raise ValueError("sample 1337 has no label")
        if args.fault == "gil":
            hold_the_gil()
        if args.fault == "thread-lock":
            lock_cache()
    batch = tokens(step, rank)
    if args.fault in ("nan", "nan-skip") and step == FAULT_STEP and guilty:
        batch[0, 0] = math.nan
    if args.fault == "slow" and guilty:
        time.sleep(0.7)
    return batch


def lock_cache() -> None:
    """Take a lock twice: the cache of the loader is not re-entrant."""
    import threading

    lock = threading.Lock()
    with lock:
        lock.acquire()


def strike(step: int) -> None:
    """What happens to a process from outside, or in C."""
    if step != FAULT_STEP:
        return
    if args.fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif args.fault == "segfault":
        ctypes.string_at(0)
    elif args.fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif args.fault == "os-exit":
        os._exit(0)
    elif args.fault == "exit-code":
        raise SystemExit(3)
    elif args.fault == "oom":
        torch.empty(1 << 46)


def validate(group: dist.ProcessGroup) -> float:
    """Average accuracy over the group."""
    correct = torch.ones(1)
    dist.all_reduce(correct, group=group)
    return float(correct) / dist.get_world_size(group)


def log_loss(loss: torch.Tensor) -> None:
    """Print the mean loss."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    print(f"loss {float(mean) / dist.get_world_size():.3f}")


def save_checkpoint(rank: int) -> None:
    """Rank 0 writes, the others wait until it is there."""
    if rank == 0:
        write_shards()
    dist.barrier()


def write_shards() -> None:
    """To a file system that is full."""
    if args.fault == "ckpt-slow":
        wait_for_ever()


def upload_logs() -> None:
    """To a bucket that does not answer."""
    wait_for_ever()


def main() -> None:
    """Train, validate, log, save."""
    guilty = int(os.environ["RANK"]) == args.rank
    if args.fault == "no-init" and guilty:
        wait_for_ever()
    dist.init_process_group("gloo", timeout=timeout())
    warm_up()
    rank = dist.get_rank()
    if args.fault == "new-group" and guilty:
        wait_for_ever()
    metrics = dist.new_group(group_desc="metrics")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.004)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = args.steps
    if args.fault in ("uneven", "uneven-eval", "destroy") and guilty:
        steps -= 2
    for step in range(steps):
        batch = next_batch(step, rank, guilty)
        if guilty:
            strike(step)
        skip = guilty and (
            (args.fault == "unused" and step == FAULT_STEP)
            or (args.fault == "unused-last" and step == steps - 1)
        )
        try:
            loss = model(batch, skip).square().mean()
            if args.fault == "nan" and not torch.isfinite(loss):
                raise FloatingPointError(f"loss is NaN at step {step}")
            if args.fault == "nan-skip" and not torch.isfinite(loss):
                continue
            loss.backward()
        except FloatingPointError:
            if args.fault == "crash-cleanup":
                dist.barrier()
            raise
        optimizer.step()
        optimizer.zero_grad()
        if step == FAULT_STEP:
            if args.fault == "val-guard" and guilty:
                validate(dist.group.WORLD)
            if args.fault == "log-guard" and guilty:
                log_loss(loss)
            if args.fault == "ckpt-guard" and guilty:
                save_checkpoint(rank)
            if args.fault == "ckpt-slow":
                save_checkpoint(rank)
        time.sleep(0.02)
    if args.fault == "destroy" and guilty:
        dist.destroy_process_group()
        upload_logs()
    if args.fault == "uneven" and guilty:
        dist.destroy_process_group()
        return
    validate(metrics)
    dist.barrier()
    if args.fault == "destroy-kill" and guilty:
        os.kill(os.getpid(), signal.SIGKILL)
    if args.fault == "quiescent":
        upload_logs()
    if args.fault == "destroy-kill":
        dist.barrier()
    dist.destroy_process_group()


main()
