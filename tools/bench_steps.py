"""Training steps with recording switched on and off step by step, as one rank runs them.

Half a percent of a step is less than the variation of steps from one minute to the next. Steps are
therefore measured in quadruples, off-on-on-off or on-off-off-on, in an order that both ranks draw
from the same seed. A slow drift cancels out in (on + on - off - off) / 2. Only the recorder's
kernels in the dispatcher and its ``Work.wait`` are switched. The recording session itself stays
open, so no step pays for a new ring or for stacks that are seen for the first time. The watcher
thread cannot be switched step by step. It runs during all steps, and its CPU time is measured by
its own clock.

That difference varies by more than half a percent from run to run where cores are shared with other
machines. The compiled hot path is therefore also built with a clock (``meter.hpp``) that adds up
what the job's threads spend in it during each step, the wait for the GIL included. It does not see
that torch calls a kernel for all argument types, a microsecond or less per call, nor what the
recorder evicts from the CPU caches.

The model is a transformer of six layers (width 256, AdamW), on one core per rank, or alone on a
GPU, with the collectives of a real step: DDP with five buckets, or FSDP2 with each layer as a unit.
On one core, a step of 512 tokens per rank takes two to three tenths of a second, which is a
demanding case. A step of 4,096 tokens, still few, takes one to two seconds.

On a GPU the model has twelve layers of width 1,024 (151 million parameters) and computes in
bfloat16 on 8,192 tokens, and DDP has its default buckets.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tools.gpus import take_gpu


@dataclass(frozen=True, slots=True)
class Model:
    """Its size, and how much a step computes."""

    layers: int
    width: int
    heads: int
    tokens: int
    """Of a sequence."""
    sequences: int
    """Of a rank's batch."""
    bucket_mb: int
    """DDP's limit for a bucket."""


SHORT = Model(layers=6, width=256, heads=4, tokens=128, sequences=4, bucket_mb=4)
LONG = replace(SHORT, sequences=32)
ON_GPU = Model(layers=12, width=1024, heads=16, tokens=512, sequences=16, bucket_mb=25)
WARM_UP_STEPS = 6
SEED = 7


@dataclass(slots=True)
class StepTimes:
    """What one rank measured; nanoseconds."""

    wall: list[tuple[int, int, int, int]] = field(default_factory=list)
    """For each quadruple: off, off, on, on."""
    cpu: list[tuple[int, int, int, int]] = field(default_factory=list)
    """The same for the CPU time of the whole process."""
    inside: list[int] = field(default_factory=list)
    """For each step with recording: time in the hot path. Empty without a clock in it."""
    watcher_cpu: int = 0
    """CPU time of the watcher thread over the whole run."""
    seconds: float = 0.0
    """Duration of the whole run."""
    records: float = 0.0
    """Records per step."""


class Switch:
    """Removes the recorder's kernels and reinstalls them, in a fraction of a step."""

    def __init__(self) -> None:
        import functools

        import torch.distributed as dist

        import hangscope
        from hangscope.recording.api import current_session
        from hangscope.recording.compiled.load import compiled

        module = compiled()
        self.inside: Callable[[], int | None] = module.metered if module else lambda: None
        """Nanoseconds in the hot path so far; None without a clock in it."""
        self._work: Any = dist.Work
        self._plain_wait = dist.Work.wait
        if not hangscope.start():
            raise RuntimeError("recording did not start")
        session: Any = current_session()
        self.session = session
        self._wait = dist.Work.wait
        # The kernels are created once, so that they keep their caches of the job's shapes.
        session.recorder.beginner = functools.cache(session.recorder.beginner)
        session.recorder.issuer = functools.cache(session.recorder.issuer)
        self.off()
        self.on()

    def off(self) -> None:
        """Switch recording off."""
        self.session.hook.remove()
        self._work.wait = self._plain_wait

    def on(self) -> None:
        """Switch recording on, afresh if it is on already."""
        self.session.hook.remove()
        self.session.hook.install()
        self.session.hook.listening = True
        self._work.wait = self._wait

    def watcher_cpu(self) -> int:
        """CPU time of the watcher thread so far, in nanoseconds."""
        return time.clock_gettime_ns(time.pthread_getcpuclockid(self.session.watcher.ident))

    def records(self) -> int:
        """Id of the newest record."""
        from hangscope.ring.writer import LAST_RECORD_CELL

        return int(self.session.ring.cells[LAST_RECORD_CELL])


def measure(make_step: Callable[[], Callable[[], None]], seconds: float, device: str) -> StepTimes:
    """Run quadruples of steps for about ``seconds``; `make_step` builds the model."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = make_step()
    switch = Switch()
    for _ in range(WARM_UP_STEPS):
        step()
    before = switch.records()
    began_s = time.perf_counter()
    step()
    step_s = time.perf_counter() - began_s
    times = StepTimes(records=float(switch.records() - before))
    gc.collect()
    gc.freeze()

    count = torch.tensor([max(4, round(seconds / (4 * step_s)))], device=device)
    dist.broadcast(count, 0)
    order = random.Random(SEED)
    watched = switch.watcher_cpu()
    began_s = time.perf_counter()
    for _ in range(int(count)):
        first = order.random() < 0.5
        wall: dict[bool, list[int]] = {False: [], True: []}
        cpu: dict[bool, list[int]] = {False: [], True: []}
        for on in (first, not first, not first, first):
            switch.on()  # in both cases, as installing the kernels disturbs the CPU caches
            if not on:
                switch.off()
            dist.barrier()
            inside_ns = switch.inside()
            cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
            step()
            wall[on].append(time.perf_counter_ns() - wall_ns)
            cpu[on].append(time.process_time_ns() - cpu_ns)
            if on:
                switch.off()
                if inside_ns is not None:
                    times.inside.append((switch.inside() or 0) - inside_ns)
        times.wall.append((*wall[False], *wall[True]))  # type: ignore[arg-type]
        times.cpu.append((*cpu[False], *cpu[True]))  # type: ignore[arg-type]
    times.seconds = time.perf_counter() - began_s
    times.watcher_cpu = switch.watcher_cpu() - watched
    return times


def ddp(seconds: float, size: Model = SHORT, device: str = "cpu") -> StepTimes:
    """Steps under DistributedDataParallel, with as many buckets as a large model has."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    _start(device)
    result = measure(
        lambda: _step(
            DistributedDataParallel(_model(size, device), bucket_cap_mb=size.bucket_mb),
            size,
            device,
        ),
        seconds,
        device,
    )
    dist.barrier()
    return result


def fsdp(seconds: float, size: Model = SHORT, device: str = "cpu") -> StepTimes:
    """Steps under FSDP2, every layer a unit."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _start(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))

    def make() -> Callable[[], None]:
        model = _model(size, device)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return _step(model, size, device)

    result = measure(make, seconds, device)
    dist.barrier()
    return result


def _start(device: str) -> None:
    import torch.distributed as dist

    if device == "cuda":
        take_gpu()
        dist.init_process_group("nccl")
        return
    cores = sorted(os.sched_getaffinity(0))
    dist.init_process_group("gloo")
    if len(cores) >= dist.get_world_size():  # pin each rank with all its threads to its own core
        os.sched_setaffinity(0, {cores[dist.get_rank()]})
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), {cores[dist.get_rank()]})


def _model(size: Model, device: str) -> Any:
    from torch import nn

    layer = nn.TransformerEncoderLayer(
        size.width, size.heads, 4 * size.width, dropout=0.0, batch_first=True
    )
    return nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False).to(device)


def _step(model: Any, size: Model, device: str) -> Callable[[], None]:
    import torch

    on_gpu = device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=on_gpu)
    batch = torch.randn(size.sequences, size.tokens, size.width, device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if on_gpu:  # a step ends when the device has finished it
            torch.cuda.synchronize()

    return step
