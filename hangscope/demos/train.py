"""A small data-parallel training job with a second process group, and one fault in it.

Run by ``hangscope demo`` under torchrun; nothing in it knows of HangScope.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT_STEP = 6
FOR_EVER_S = 3600.0


class Model(nn.Module):
    """Two branches; the second may be skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(32, 64)
        self.branch = nn.Linear(64, 64)
        self.head = nn.Linear(64, 8)

    def forward(self, batch: torch.Tensor, skip_branch: bool = False) -> torch.Tensor:
        """Shape (batch, 32) to (batch, 8)."""
        hidden = self.trunk(batch).relu()
        if not skip_branch:
            hidden = self.branch(hidden).relu()
        output: torch.Tensor = self.head(hidden)
        return output


def prepare_data(fault: str) -> None:
    """Before the process group exists."""
    if fault == "no-init" and os.environ["RANK"] == "3":
        time.sleep(FOR_EVER_S)


def load_batch(step: int, rank: int, fault: str) -> torch.Tensor:
    """The next batch of this rank's shard: shape (4, 32)."""
    if step == FAULT_STEP:
        if fault == "asleep-in-loader" and rank == 2:
            time.sleep(FOR_EVER_S)
        if fault == "endless-loop" and rank == 1:
            tokenize()
        if fault == "exception" and rank == 3:
            raise ValueError("sample 1337 of shard 3 has no label")
    if fault == "slow" and rank == 1:
        time.sleep(1.0)
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(4, 32, generator=generator)


def tokenize() -> int:
    """Never ends."""
    position = 0
    while True:
        position = (position * 31 + 7) % 65537


def lock_holding_the_gil() -> None:
    """Lock a mutex twice: it never returns, and a function called through PyDLL keeps the GIL."""
    mutex = (ctypes.c_char * 64)()
    pthread_mutex_lock = ctypes.PyDLL(None).pthread_mutex_lock
    pthread_mutex_lock(mutex)
    pthread_mutex_lock(mutex)


def save_checkpoint(step: int, rank: int, metrics: dist.ProcessGroup, fault: str) -> None:
    """Rank 0 saves; guarding a barrier like this makes a deadlock."""
    if rank == 0 and fault == "rank-guarded" and step == FAULT_STEP:
        dist.barrier(group=metrics)


def evaluate(step: int, rank: int, metrics: dist.ProcessGroup, fault: str) -> None:
    """Average a metric over the second group."""
    here = step == FAULT_STEP
    score = torch.full((6 if here and fault == "wrong-shape" and rank == 1 else 4,), float(rank))
    if here and fault == "wrong-op" and rank == 2:
        dist.broadcast(score, src=0, group=metrics)
    elif here and fault == "crossed-groups":
        first, second = (metrics, None) if rank == 2 else (None, metrics)
        dist.all_reduce(score, group=first)
        dist.all_reduce(score, group=second)
    else:
        dist.all_reduce(score, group=metrics)


def pass_activations(step: int, rank: int, fault: str) -> None:
    """Exchange with the neighbours."""
    world = dist.get_world_size()
    if fault == "recv-circle" and step == FAULT_STEP:
        activations = torch.zeros(16)
        dist.recv(activations, src=(rank + 1) % world)
        dist.send(activations, dst=(rank - 1) % world)


def strike(step: int, rank: int, fault: str) -> None:
    """Inject faults of the process rather than of its program."""
    if step != FAULT_STEP:
        return
    if fault == "gil-held" and rank == 3:
        lock_holding_the_gil()
    if fault == "sigkill" and rank == 2:
        signal.raise_signal(signal.SIGKILL)
    if fault == "sigstop" and rank == 1:
        signal.raise_signal(signal.SIGSTOP)
    if fault == "os-exit" and rank == 0:
        os._exit(0)


def train(fault: str, steps: int, weights: str | None) -> None:
    """Train, evaluate, finish."""
    prepare_data(fault)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    metrics = dist.new_group(group_desc="metrics")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    own_steps = FAULT_STEP if fault == "fewer-batches" and rank == 1 else steps
    for step in range(own_steps):
        batch = load_batch(step, rank, fault)
        strike(step, rank, fault)
        skip = fault == "unused-parameters" and rank == 2 and step > FAULT_STEP
        loss = model(batch, skip_branch=skip).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        save_checkpoint(step, rank, metrics, fault)
        if step % 3 == 0:
            evaluate(step, rank, metrics, fault)
        pass_activations(step, rank, fault)
        time.sleep(0.05)
    if weights is not None and rank == 0:
        torch.save(model.module.state_dict(), weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="healthy")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--weights")
    arguments = parser.parse_args()
    train(arguments.fault, arguments.steps, arguments.weights)
