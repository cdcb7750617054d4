"""Calls of one small collective with recording switched on and off, as one rank runs them.

Blocks of calls come in turn, with recording and without, in the same process. Every call has
``FRAMES`` frames above it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

FRAMES = 20
BLOCK_CALLS = 400
WARM_UP_CALLS = 40
BURST = 20
COLD_CALLS, COLD_WARM_UP_CALLS = 20, 2


Block = dict[str, Any]
"""``wall``: nanoseconds of each call; ``cpu``: average CPU nanoseconds per call."""
Times = dict[str, list[Block]]
"""The blocks of each way of recording: off, on, nostacks."""


def switch(mode: str) -> None:
    """Switch recording on or off."""
    import hangscope

    hangscope.stop()
    if mode == "off":
        return
    os.environ["HANGSCOPE_STACKS"] = "0" if mode == "nostacks" else "1"
    os.environ["HANGSCOPE_DIR"] = tempfile.mkdtemp(dir=os.environ["SCRATCH"])
    if not hangscope.start():
        raise RuntimeError("recording did not start")


def at_depth(depth: int, call: Callable[[], Any]) -> Any:
    """Call ``call`` with this many frames above it."""
    return at_depth(depth - 1, call) if depth > 0 else call()


def fake(blocks: int, modes: tuple[str, ...]) -> Times:
    """Nanoseconds per call of an async all-reduce on a process group that does nothing."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor = torch.ones(8)
    return _timed_calls(lambda: dist.all_reduce(tensor, async_op=True), None, blocks, modes)


def cold(blocks: int, modes: tuple[str, ...]) -> Times:
    """Like `fake`, but each call follows some ten milliseconds of computing.

    A training step calls like that: between calls, everything but the computation and its data has
    been evicted from the CPU caches.
    """
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor = torch.ones(8)
    weights = [torch.randn(256, 256) / 16 for _ in range(50)]
    parameters, gradients = torch.randn(2, 12_000_000)
    batch = torch.randn(512, 256)

    def compute() -> None:
        parameters.add_(gradients, alpha=1e-9)
        value = batch
        for weight in weights:
            value = torch.relu(value @ weight)

    return _timed_calls(
        lambda: dist.all_reduce(tensor, async_op=True), None, blocks, modes, compute
    )


def gloo(blocks: int, modes: tuple[str, ...]) -> Times:
    """Nanoseconds per call for issuing small async all-reduces on Gloo, twenty before each wait."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(8)
    return _timed_calls(
        lambda: dist.all_reduce(tensor, async_op=True), lambda work: work.wait(), blocks, modes
    )


def nccl(blocks: int, modes: tuple[str, ...]) -> Times:
    """Like `gloo`, but alone on one GPU: only issuing counts, the device is no bottleneck."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    tensor = torch.ones(8, device="cuda")
    return _timed_calls(
        lambda: dist.all_reduce(tensor, async_op=True), lambda work: work.wait(), blocks, modes
    )


def _timed_calls(
    call: Callable[[], Any],
    after: Callable[[Any], Any] | None,
    blocks: int,
    modes: tuple[str, ...],
    compute: Callable[[], None] | None = None,
) -> Times:
    clock = time.perf_counter_ns
    works: list[Any] = []
    calls, warm_up = BLOCK_CALLS, WARM_UP_CALLS
    if compute is not None:
        calls, warm_up = COLD_CALLS, COLD_WARM_UP_CALLS

    def block() -> Block:
        times = []
        cpu = 0
        for number in range(calls + warm_up):
            if number == warm_up:
                cpu = time.thread_time_ns()
            if compute is not None:
                computing = time.thread_time_ns()
                compute()
                if number >= warm_up:
                    cpu += time.thread_time_ns() - computing  # subtract the computing
            began = clock()
            work = call()
            times.append(clock() - began)
            if after is not None:
                works.append(work)
                if len(works) == BURST:
                    for issued in works:
                        after(issued)
                    works.clear()
        cpu = time.thread_time_ns() - cpu
        return {"wall": times[warm_up:], "cpu": cpu / calls}

    times: Times = {mode: [] for mode in modes}
    for number in range(blocks + 1):
        for mode in modes:
            switch(mode)
            measured = at_depth(FRAMES - 6, block)  # six frames are torch's and this file's own
            if number:  # the first round warms up
                times[mode].append(measured)
    switch("off")
    return times
