"""The training job that `tools.chaos` breaks: one small model, parallelised in four ways.

It injects one fault at one place: ``--step`` and ``--point`` select the place within the step at
which the rank ``--rank`` strikes. This program does not inject faults from outside (signals).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tools.gpus import take_gpu

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=["ddp", "fsdp", "tp", "pipeline"], default="ddp")
parser.add_argument("--fault", default="none")
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--step", type=int, default=5)
parser.add_argument("--point", type=int, default=0)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--pace", type=float, default=0.03, help="seconds of work per step")
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
parser.add_argument("--limit", type=float, default=1800.0, help="the process group's timeout, s")
args = parser.parse_args()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOR_EVER_S = 3600.0
SHORT_S = 1.5
ON_GPU = args.device == "cuda"
if ON_GPU:  # concurrency is the device's: a step ends on it
    take_gpu()
    torch.set_default_device("cuda")


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
    """Tracks where in the step the rank is, and injects the fault once."""

    def __init__(self) -> None:
        self.step = -1
        self._point = 0
        self._armed = args.rank == RANK and args.fault != "none"

    def begin(self, step: int) -> None:
        """A step begins."""
        self.step, self._point = step, 0

    def _is_here(self) -> bool:
        due = self.step == args.step and self._point >= args.point
        here: bool = self._armed and (due or self.step > args.step)
        self._point += 1
        if here:
            self._armed = False
        return here

    def place(self) -> None:
        """A point between collectives, where a rank can end or get stuck."""
        if args.fault in PROCESS_FAULTS and self._is_here():
            PROCESS_FAULTS[args.fault]()

    def sleep_in_hook(self) -> None:
        """In the fatal step, block in a hook of the backward pass."""
        if self.step == args.step:
            time.sleep(FOR_EVER_S)

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
        if wrong == "guarded":
            dist.barrier(group=group)
        dtype = torch.float64 if wrong == "dtype" else torch.float32
        reduction = dist.ReduceOp.MAX if wrong == "reduce-op" else dist.ReduceOp.SUM
        dist.all_reduce(torch.ones(size, dtype=dtype), op=reduction, group=group)


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


def wait_for_a_child() -> None:
    """A helper program that never ends."""
    subprocess.run(["sleep", str(FOR_EVER_S)], check=False)


def wait_for_a_thread() -> None:
    """A queue whose feeder died of a bad sample."""
    samples: queue.Queue[int] = queue.Queue()

    def feed() -> None:
        raise ValueError("a shard that is cut off")

    threading.Thread(target=feed, name="feeder", daemon=True).start()
    samples.get()


def wait_for_a_key() -> None:
    """A key of the job's store that nobody sets."""
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(timedelta(seconds=FOR_EVER_S))
    store.get("a key that nobody sets")


def compute() -> None:
    """Work that is long, but not longer than the timeout."""
    until_s = time.monotonic() + SHORT_S
    while time.monotonic() < until_s:
        torch.randn(64, 64) @ torch.randn(64, 64)


def lose_the_data_server() -> None:
    """A connection of the rank's own, broken."""
    raise ConnectionResetError(104, "Connection reset by peer")


def run_out_of_memory() -> None:
    """More memory than there is."""
    bytearray(1 << 60)


def fail() -> None:
    """An exception."""
    raise ValueError("a sample without a label")


def leave() -> None:
    """Exit with status 0."""
    os._exit(0)


def give_up() -> None:
    """Exit with a failure status."""
    raise SystemExit(3)


def hold_the_device() -> None:
    """A kernel that never ends."""
    torch.cuda._sleep(int(FOR_EVER_S * 1e9))  # type: ignore[no-untyped-call]


def run_out_of_device_memory() -> None:
    """More memory than the device has."""
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


PROCESS_FAULTS: dict[str, Callable[[], object]] = {
    "sleep": sleep,
    "spin": spin,
    "gil": hold_the_gil,
    "lock": lock_twice,
    "raise": fail,
    "segfault": lambda: ctypes.string_at(0),
    "os-exit": leave,
    "exit-3": give_up,
    "child": wait_for_a_child,
    "feeder": wait_for_a_thread,
    "store": wait_for_a_key,
    "pause": lambda: time.sleep(SHORT_S),
    "compute": compute,
    "reset": lose_the_data_server,
    "memory": run_out_of_memory,
    "abort": os.abort,
    "kernel": hold_the_device,
    "oom": run_out_of_device_memory,
    "self-kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "self-stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "self-term": lambda: os.kill(os.getpid(), signal.SIGTERM),
}
CALL_FAULTS = ("skip", "extra", "op", "shape", "dtype", "reduce-op", "guarded")
saboteur = Saboteur()


def train_ddp() -> None:
    """DDP, a metric in a separate group, and an uneven loader for the fault ``early-end``."""
    metrics = dist.new_group(group_desc="metrics")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(Mlp(), Mlp()), bucket_cap_mb=0.004)
    if args.fault == "hook" and args.rank == RANK:
        next(model.parameters()).register_hook(lambda _: saboteur.sleep_in_hook())  # type: ignore[no-untyped-call]
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
    """FSDP2, optionally with tensor parallelism within pairs of ranks."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Mlp() for _ in range(3))
    if args.kind == "tp":
        mesh = init_device_mesh(args.device, (WORLD // 2, 2), mesh_dim_names=("dp", "tp"))
        for layer in layers:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(layer, mesh["tp"], plan)
            fully_shard(layer, mesh=mesh["dp"])
        replica = RANK // 2
    else:
        mesh = init_device_mesh(args.device, (WORLD,), mesh_dim_names=("dp",))
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
        x.square().mean().backward()  # type: ignore[no-untyped-call]
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
    """Pipeline stages that send two micro-batches forward and gradients back."""
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

    ``skip``: the guilty rank of ``skip-send`` and ``skip-recv`` omits its half.
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
    dice = torch.Generator("cpu").manual_seed(step * 64 + replica)
    return torch.randn(4, 16, generator=dice, device="cpu").to(args.device)


def steps() -> range:
    """The steps of this rank; the guilty one of ``early-end`` and ``early-eval`` has fewer."""
    short = args.fault in ("early-end", "early-eval") and args.rank == RANK
    count = args.step if short else args.steps
    return Steps(count)  # type: ignore[return-value]


class Steps:
    """Counts steps and notifies the saboteur."""

    def __init__(self, count: int) -> None:
        self._steps = iter(range(count))

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        step = next(self._steps)
        if ON_GPU:
            torch.cuda.synchronize()  # as reading the loss does
        saboteur.begin(step)
        if REPLAYED is not None:
            if args.rank == RANK and step == args.step:
                sleep()
            REPLAYED.replay()
        if args.kind == "pipeline":
            time.sleep(args.pace * (12.0 if args.fault == "slow" and args.rank == RANK else 1.0))
        return step


REPLAYED: torch.cuda.CUDAGraph | None = None
"""An all-reduce in a graph; each step begins with it."""


def capture() -> torch.cuda.CUDAGraph:
    """Capture an all-reduce of the default group."""
    values = torch.ones(1024)
    dist.all_reduce(values)  # makes the communicator, which a capture cannot
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(values)
    return graph


def main() -> None:
    """Set up, train, finish."""
    global REPLAYED
    if args.fault == "late" and args.rank == RANK:
        time.sleep(FOR_EVER_S)
    dist.init_process_group("nccl" if ON_GPU else "gloo", timeout=timedelta(seconds=args.limit))
    REPLAYED = capture() if args.fault == "replay" else None
    {"ddp": train_ddp, "fsdp": train_sharded, "tp": train_sharded, "pipeline": train_pipeline}[
        args.kind
    ]()
    if args.fault == "early-end" and args.rank == RANK:
        dist.destroy_process_group()
        return
    dist.all_gather([torch.zeros(7) for _ in range(WORLD)], torch.zeros(7))  # the evaluation
    dist.barrier()
    dist.destroy_process_group()


main()
