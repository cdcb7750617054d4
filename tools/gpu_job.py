"""The job that `tools.gpu_faults` breaks: four ranks that use NCCL in every way, and one fault.

Each step: two all-reduces in a pair of ranks, one across pairs, an all-to-all, a ring of sends and
receives, an all-reduce of all ranks, one of a communicator that torch does not know, and a captured
one that is replayed. On Gloo the captured and the foreign one are left out.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tools.gpus import take_gpu

FOR_EVER_S = 3600.0
SPIN_CYCLES = 1 << 50
"""So many cycles are more than a week."""
NCCL_FLOAT32, NCCL_SUM = 7, 0

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none")
parser.add_argument("--step", type=int, default=6)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--pace", type=float, default=0.05, help="seconds of work per step")
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
args = parser.parse_args()
PLAIN = args.fault.endswith("-plain")
"""Without a graph: after a replay, NCCL tells less of what its communicator does."""
FAULT = args.fault.removesuffix("-plain")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ON_GPU = args.device == "cuda"


class UniqueId(ctypes.Structure):
    """``ncclUniqueId``."""

    _fields_ = [("internal", ctypes.c_byte * 128)]


class ForeignCommunicator:
    """All ranks in a communicator made with NCCL's own functions, as pynccl does it."""

    def __init__(self, store: torch._C._distributed_c10d.Store) -> None:
        self._nccl = ctypes.CDLL("libnccl.so.2")
        unique = UniqueId()
        if RANK == 0:
            self._check(self._nccl.ncclGetUniqueId(ctypes.byref(unique)))
            store.set("foreign", bytes(unique).hex())
        unique = UniqueId.from_buffer_copy(bytes.fromhex(store.get("foreign").decode()))
        self._communicator = ctypes.c_void_p()
        init = self._nccl.ncclCommInitRank
        init.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        self._check(init(ctypes.byref(self._communicator), WORLD, unique, RANK))
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum a float32 tensor in place, on a stream of its own."""
        with torch.cuda.stream(self.stream):
            self._check(
                self._nccl.ncclAllReduce(
                    ctypes.c_void_p(tensor.data_ptr()),
                    ctypes.c_void_p(tensor.data_ptr()),
                    ctypes.c_size_t(tensor.numel()),
                    ctypes.c_int(NCCL_FLOAT32),
                    ctypes.c_int(NCCL_SUM),
                    self._communicator,
                    ctypes.c_void_p(self.stream.cuda_stream),
                )
            )

    def _check(self, result: int) -> None:
        if result:
            raise RuntimeError(f"NCCL says {result}")


def spin() -> None:
    """Keep the current stream busy for ever."""
    torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]


def trip() -> None:
    """A device assertion: a value that must not be zero."""
    torch._assert_async(torch.zeros(1, dtype=torch.int32).to("cuda"))
    torch.cuda.synchronize()


def exhaust() -> None:
    """More memory than the device has."""
    torch.empty(1 << 46, dtype=torch.uint8, device=args.device)


def sleep() -> None:
    """A read that never returns."""
    time.sleep(FOR_EVER_S)


def fail() -> None:
    """An exception."""
    raise ValueError("a sample without a label")


BETWEEN: dict[str, tuple[int, Callable[[], object]]] = {
    "sleep": (1, sleep),
    "kernel": (1, spin),
    "assert": (1, trip),
    "oom": (3, exhaust),
    "raise": (0, fail),
}
"""Faults at the beginning of a step: the rank, and what it does there."""
IN_FLIGHT: dict[str, tuple[int, Callable[[], object]]] = {
    "exit0": (2, lambda: os._exit(0)),
    "sigstop": (2, lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "sigkill": (2, lambda: os.kill(os.getpid(), signal.SIGKILL)),
}
"""Faults behind the step's last operation, which may still be under way."""


class Job:
    """Groups, tensors, the graph and the foreign communicator of one rank."""

    def __init__(self) -> None:
        self.device = args.device
        pairs = [[0, 1], [2, 3]]
        across = [[0, 2], [1, 3]]
        self.tp = self._own(pairs, "tp")
        self.dp = self._own(across, "dp")
        self.small = torch.ones(1, device=self.device)
        self.block = torch.ones(8192, device=self.device)
        self.gradient = torch.ones(263168, device=self.device)
        self.foreign: ForeignCommunicator | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        if ON_GPU:
            self.foreign = ForeignCommunicator(dist.distributed_c10d._get_default_store())
            self.outside = torch.ones(2048, device=self.device)
            if not PLAIN:
                self._capture()

    def _own(self, members: list[list[int]], name: str) -> dist.ProcessGroup:
        groups = [dist.new_group(ranks, group_desc=name) for ranks in members]
        mine: dist.ProcessGroup = groups[[RANK in ranks for ranks in members].index(True)]
        return mine

    def _capture(self) -> None:
        self.captured = torch.ones(1024, device=self.device)
        dist.all_reduce(self.captured)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            dist.all_reduce(self.captured)
        self.graph = graph

    def step(self, here: str) -> None:
        """One step; ``here`` is the fault if it strikes in this one."""
        if here in BETWEEN and BETWEEN[here][0] == RANK:
            BETWEEN[here][1]()
        dist.all_reduce(self.block, group=self.tp)
        works = [dist.all_reduce(self.block, group=self.tp, async_op=True)]
        size = 7 if here == "shape" and RANK == 3 else self.gradient.numel()
        dist.all_reduce(self.gradient[:size], group=self.dp)
        self.exchange(wrong=here == "splits" and RANK == 1)
        self.ring(silent=here == "p2p" and RANK == 1)
        works.append(dist.all_reduce(self.small, async_op=True))
        if here in IN_FLIGHT and IN_FLIGHT[here][0] == RANK:
            IN_FLIGHT[here][1]()
        for work in works:
            work.wait()
        self.outside_torch(here)
        self.replay(here)
        if ON_GPU:
            torch.cuda.synchronize()

    def exchange(self, wrong: bool) -> None:
        """An all-to-all; a wrong rank sends one element fewer to rank 3 than that expects."""
        splits = [4] * WORLD
        if wrong:
            splits = [4, 4, 5, 3]
        send = torch.ones(sum(splits), device=self.device)
        receive = torch.zeros(4 * WORLD, device=self.device)
        dist.all_to_all_single(receive, send, [4] * WORLD, splits)

    def ring(self, silent: bool) -> None:
        """Each rank sends to the next one; a silent rank only receives."""
        out = torch.ones(512, device=self.device)
        into = torch.zeros(512, device=self.device)
        parts = [dist.P2POp(dist.irecv, into, (RANK - 1) % WORLD)]
        if not silent:
            parts.append(dist.P2POp(dist.isend, out, (RANK + 1) % WORLD))
        for work in dist.batch_isend_irecv(parts):
            work.wait()

    def outside_torch(self, here: str) -> None:
        """An all-reduce that torch does not know."""
        if self.foreign is None:
            return
        if here == "foreign" and RANK == 2:
            sleep()
        if here == "foreign-kernel" and RANK == 2:
            with torch.cuda.stream(self.foreign.stream):
                spin()
        self.foreign.all_reduce(self.outside)

    def replay(self, here: str) -> None:
        """The captured all-reduce."""
        if self.graph is None:
            return
        if here == "graph" and RANK == 1:
            sleep()
        if here == "graph-kernel" and RANK == 1:
            spin()
        self.graph.replay()


def await_monitor(most_s: float = 30.0) -> None:
    """Let the monitor start: on a busy machine it takes longer than the steps before a fault."""
    folder, until_s = os.environ.get("HANGSCOPE_DIR"), time.monotonic() + most_s
    while folder and not list(Path(folder).glob("*.journal")) and time.monotonic() < until_s:
        time.sleep(0.1)


def main() -> None:
    """Set up, work, finish."""
    if ON_GPU:
        take_gpu()
    dist.init_process_group("nccl" if ON_GPU else "gloo", timeout=timedelta(seconds=600))
    job = Job()
    await_monitor()
    for step in range(args.steps):
        time.sleep(args.pace)
        job.step(FAULT if step == args.step else "")
    dist.barrier()
    if ON_GPU:
        torch.cuda.synchronize()
    job.graph = None  # NCCL frees no communicator that a graph refers to
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
