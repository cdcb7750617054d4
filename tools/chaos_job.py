"""The training job that `tools.chaos` breaks: one small model, four ways to parallelise it.

One fault at one place: ``--step`` and ``--point`` say at which of the step's places the rank
``--rank`` strikes. Faults from outside (signals) are not this program's business.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=["ddp", "fsdp", "tp", "pipeline"], default="ddp")
parser.add_argument("--fault", default="none")
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--step", type=int, default=5)
parser.add_argument("--point", type=int, default=0)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--pace", type=float, default=0.03, help="seconds of work a step")
args = parser.parse_args()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOR_EVER_S = 3600.0


class Mlp(nn.Module):
    """Shape (batch, 16) to (batch, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        result: torch.Tensor = self.down(self.up(x).relu())
        return result


class Saboteur:
    """Knows where in the step the rank is, and strikes once."""

    def __init__(self) -> None:
        self.step = -1
        self._point = 0
        self._armed = args.rank == RANK and args.fault != "none"

    def begin(self, step: int) -> None:
        """A step begins."""
        self.step, self._point = step, 0

    def _is_here(self) -> bool:
        due = self.step == args.step and self._point >= args.point
        here = self._armed and (due or self.step > args.step)
        self._point += 1
        if here:
            self._armed = False
        return here

    def place(self) -> None:
        """A place between collectives, where a rank can end or get stuck."""
        if args.fault in PROCESS_FAULTS and self._is_here():
            PROCESS_FAULTS[args.fault]()

    def reduce(self, size: int, group: dist.ProcessGroup | None = None) -> None:
        """An all-reduce that the guilty rank may get wrong."""
        wrong = args.fault if args.fault in CALL_FAULTS and self._is_here() else ""
        if wrong == "skip":
            return
        if wrong == "extra":
            dist.all_reduce(torch.ones(size + 5), group=group)
        if wrong == "op":
            dist.all_gather_into_tensor(
                torch.zeros(dist.get_world_size(group) * size), torch.ones(size), group=group
            )
            return
        if wrong == "shape":
            size += 3
        dtype = torch.float64 if wrong == "dtype" else torch.float32
        dist.all_reduce(torch.ones(size, dtype=dtype), group=group)


def sleep() -> None:
    """A read that never returns."""
    time.sleep(FOR_EVER_S)


def spin() -> None:
    """A loop without an end."""
    x = 1
    while True:
        x = (x * 31 + 7) % 65537


def hold_the_gil() -> None:
    """C code that never gives the GIL back."""
    mutex = (ctypes.c_char * 64)()
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


def lock_twice() -> None:
    """A lock that is not re-entrant."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def fail() -> None:
    """An exception."""
    raise ValueError("a sample without a label")


def leave() -> None:
    """Out, without a word."""
    os._exit(0)


def give_up() -> None:
    """Out, with a status."""
    raise SystemExit(3)


PROCESS_FAULTS = {
    "sleep": sleep,
    "spin": spin,
    "gil": hold_the_gil,
    "lock": lock_twice,
    "raise": fail,
    "segfault": lambda: ctypes.string_at(0),
    "os-exit": leave,
    "exit-3": give_up,
}
CALL_FAULTS = ("skip", "extra", "op", "shape", "dtype")
saboteur = Saboteur()


def train_ddp() -> None:
    """Replicas, a metric of its own group, an uneven loader as the fault ``early-end``."""
    metrics = dist.new_group(group_desc="metrics")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(Mlp(), Mlp()), bucket_cap_mb=0.004)
    for step in steps():
        saboteur.place()
        loss = model(batch(step)).square().mean()
        saboteur.place()
        loss.backward()
        saboteur.place()
        swap = args.fault == "swap" and args.rank == RANK and step == args.step
        for group, size in ((None, 4), (metrics, 8))[:: -1 if swap else 1]:
            saboteur.reduce(size, group)
        saboteur.place()


def train_sharded() -> None:
    """FSDP2, or tensor parallel within pairs and sharded over them."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Mlp() for _ in range(3))
    if args.kind == "tp":
        mesh = init_device_mesh("cpu", (WORLD // 2, 2), mesh_dim_names=("dp", "tp"))
        for layer in layers:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(layer, mesh["tp"], plan)
            fully_shard(layer, mesh=mesh["dp"])
        replica = RANK // 2
    else:
        mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp",))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        replica = RANK
    groups = (None, group_of(mesh, "dp"))
    for step in steps():
        x = batch(step, replica)
        for layer in layers:
            saboteur.place()
            x = layer(x)
        saboteur.place()
        x.square().mean().backward()
        saboteur.reduce(4)
        swap = args.fault == "swap" and args.rank == RANK and step == args.step
        for group, size in ((groups[0], 6), (groups[1], 8))[:: -1 if swap else 1]:
            saboteur.reduce(size, group)
        saboteur.place()


def group_of(mesh: DeviceMesh, name: str) -> dist.ProcessGroup:
    """The process group of a mesh dimension."""
    group = mesh[name].get_group() if mesh.ndim > 1 else mesh.get_group()
    assert isinstance(group, dist.ProcessGroup)
    return group


def train_pipeline() -> None:
    """Stages that pass two micro-batches on and gradients back."""
    stage = Mlp()
    for _ in steps():
        for micro in range(2):
            pass_on(RANK - 1, RANK + 1, stage, skip=micro == args.point % 2)
        for _ in range(2):
            pass_on(RANK + 1, RANK - 1, None)
        saboteur.reduce(4)
        saboteur.place()


def pass_on(source: int, target: int, stage: Mlp | None, *, skip: bool = False) -> None:
    """Receive from the stage before, compute, send to the one after.

    ``skip``: where the guilty rank of ``skip-send`` and ``skip-recv`` leaves its half out.
    """
    x = torch.zeros(4, 16)
    guilty = skip and args.rank == RANK and saboteur.step == args.step
    left_out = args.fault if guilty else ""
    if 0 <= source < WORLD and left_out != "skip-recv":
        dist.recv(x, src=source)
    saboteur.place()
    if stage is not None:
        with torch.no_grad():
            x = stage(x)
    if 0 <= target < WORLD and left_out != "skip-send":
        dist.send(x.contiguous(), dst=target)
    saboteur.place()


def batch(step: int, replica: int = RANK) -> torch.Tensor:
    """Shape (4, 16); takes ``--pace`` seconds, and longer on a slow rank."""
    slow = 12.0 if args.fault == "slow" and args.rank == RANK else 1.0
    time.sleep(args.pace * slow)
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(step * 64 + replica))


def steps() -> range:
    """The steps of this rank; the guilty one of ``early-end`` has fewer."""
    count = args.step if args.fault == "early-end" and args.rank == RANK else args.steps
    return Steps(count)  # type: ignore[return-value]


class Steps:
    """Counts steps and tells the saboteur."""

    def __init__(self, count: int) -> None:
        self._steps = iter(range(count))

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        step = next(self._steps)
        saboteur.begin(step)
        if args.kind == "pipeline":
            time.sleep(args.pace * (12.0 if args.fault == "slow" and args.rank == RANK else 1.0))
        return step


def main() -> None:
    """Set up, train, finish."""
    dist.init_process_group("gloo")
    {"ddp": train_ddp, "fsdp": train_sharded, "tp": train_sharded, "pipeline": train_pipeline}[
        args.kind
    ]()
    if args.fault == "early-end" and args.rank == RANK:
        dist.destroy_process_group()
        return
    dist.barrier()
    dist.destroy_process_group()


main()
