"""What recording costs: added time per call and per training step, measured in one run.

    python -m tools.bench_recorder                 # everything, as Markdown tables
    python -m tools.bench_recorder --quick

Recording is switched on and off in turn inside the same process, block by block, so that whatever
else the machine does falls on both alike; figures are medians of paired differences. Torch's own
recorder can only be chosen when a process starts: its processes alternate with those without.

Besides the time that passes, the processor time used is measured: of the calling thread for calls
(issuing and waiting), of the whole process for training steps. It is what a busy machine falsifies
least, and it includes the watcher thread where it is the process's.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODES = ("off", "on", "nostacks")
FRAMES = 20
BLOCK_CALLS = 400
WARM_UP_CALLS = 40
BURST = 20
STEPS_PER_BLOCK = 4


Times = dict[str, list["Block"]]
Block = dict[str, Any]
"""``wall``: nanoseconds of each call or step; ``cpu``: processor nanoseconds for one, on average"""


# -- inside a rank -------------------------------------------------------------------------------


def switch(mode: str) -> None:
    """Record or not, from here on."""
    import hangscope

    hangscope.stop()
    if mode == "off":
        return
    os.environ["HANGSCOPE_STACKS"] = "0" if mode == "nostacks" else "1"
    os.environ["HANGSCOPE_DIR"] = tempfile.mkdtemp(dir=os.environ["SCRATCH"])
    if not hangscope.start():
        raise RuntimeError("recording did not start")


def at_depth(depth: int, call: Callable[[], Any]) -> Any:
    """Call with so many frames above."""
    return at_depth(depth - 1, call) if depth > 0 else call()


def calls_fake(blocks: int, modes: tuple[str, ...]) -> Times:
    """Nanoseconds per call of an async all-reduce on a process group that does nothing."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor = torch.ones(8)
    return _timed_calls(lambda: dist.all_reduce(tensor, async_op=True), None, blocks, modes)


def calls_gloo(blocks: int, modes: tuple[str, ...]) -> Times:
    """Nanoseconds per call of issuing small async all-reduces on Gloo, twenty before a wait."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(8)
    return _timed_calls(
        lambda: dist.all_reduce(tensor, async_op=True), lambda work: work.wait(), blocks, modes
    )


def _timed_calls(
    call: Callable[[], Any],
    after: Callable[[Any], Any] | None,
    blocks: int,
    modes: tuple[str, ...],
) -> Times:
    clock = time.perf_counter_ns
    works: list[Any] = []

    def block() -> Block:
        times = []
        cpu = 0
        for number in range(BLOCK_CALLS + WARM_UP_CALLS):
            if number == WARM_UP_CALLS:
                cpu = time.thread_time_ns()
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
        return {"wall": times[WARM_UP_CALLS:], "cpu": cpu / BLOCK_CALLS}

    times: Times = {mode: [] for mode in modes}
    for number in range(blocks + 1):
        for mode in modes:
            switch(mode)
            measured = at_depth(FRAMES - 6, block)  # and torch's and this file's own frames
            if number:  # the first round warms up
                times[mode].append(measured)
    switch("off")
    return times


def steps_ddp(blocks: int, modes: tuple[str, ...]) -> Times:
    """Nanoseconds per training step under DistributedDataParallel on Gloo."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    return _timed_steps(DistributedDataParallel(_model(), bucket_cap_mb=2), blocks, modes)


def steps_fsdp(blocks: int, modes: tuple[str, ...]) -> Times:
    """Nanoseconds per training step under FSDP2 on Gloo."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = _model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _timed_steps(model, blocks, modes)


def _model() -> Any:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(768, 768), nn.GELU()) for _ in range(8)]
    return nn.Sequential(*layers)


def _timed_steps(model: Any, blocks: int, modes: tuple[str, ...]) -> Times:
    import torch
    import torch.distributed as dist

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(256, 768)
    clock = time.perf_counter_ns

    def step() -> int:
        began = clock()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return clock() - began

    times: Times = {mode: [] for mode in modes}
    for number in range(blocks + 1):
        order = modes if number % 2 else modes[::-1]
        for mode in order:
            switch(mode)
            dist.barrier()
            step()
            cpu = time.process_time_ns()
            wall = [step() for _ in range(STEPS_PER_BLOCK)]
            cpu = time.process_time_ns() - cpu
            if number:
                times[mode].append({"wall": wall, "cpu": cpu / STEPS_PER_BLOCK})
    switch("off")
    return times


SCENARIOS: dict[str, Callable[[int, tuple[str, ...]], Times]] = {
    "fake": calls_fake,
    "gloo": calls_gloo,
    "ddp": steps_ddp,
    "fsdp": steps_fsdp,
}


# -- outside -------------------------------------------------------------------------------------


def run(scenario: str, blocks: int, modes: tuple[str, ...], *, native: bool = False) -> Any:
    """Run a scenario in processes of its own; returns rank 0's times by mode."""
    size = 1 if scenario == "fake" else 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as scratch:
        running = []
        for rank in range(size):
            env = {k: v for k, v in os.environ.items() if not k.startswith(("HANGSCOPE", "TORCH_"))}
            env |= {
                "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "HANGSCOPE_MONITOR": "0", "HANGSCOPE_FAKE": "1", "SCRATCH": scratch,
                "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "10000" if native else "0",
            }  # fmt: skip
            command = [sys.executable, "-m", "tools.bench_recorder", "--inside", scenario,
                       "--blocks", str(blocks), "--modes", ",".join(modes)]  # fmt: skip
            running.append(
                subprocess.Popen(
                    command,
                    env=env,
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        output = running[0].communicate(timeout=900)[0]
        for process in running:
            if process.wait(timeout=60):
                raise RuntimeError(f"{scenario} failed with {process.returncode}")
        return json.loads(output.splitlines()[-1])


def added(times: Times, mode: str, what: str) -> tuple[float, float, float]:
    """Median and quartiles of what a mode adds, in nanoseconds, block by block."""
    differences = [
        _level(with_it, what) - _level(without, what)
        for with_it, without in zip(times[mode], times["off"], strict=True)
    ]
    low, middle, high = statistics.quantiles(differences, n=4)
    return middle, low, high


def _level(block: Block, what: str) -> float:
    value = block[what]
    return float(statistics.median(value) if isinstance(value, list) else value)


def median(blocks: list[Block], what: str) -> float:
    """Median over all blocks, in nanoseconds."""
    if what == "cpu":
        return float(statistics.median(block["cpu"] for block in blocks))
    return float(statistics.median(value for block in blocks for value in block["wall"]))


def p99(blocks: list[Block]) -> float:
    """The 99th percentile of all calls, in nanoseconds."""
    flat = sorted(value for block in blocks for value in block["wall"])
    return float(flat[int(len(flat) * 0.99)])


def call_table(scenario: str, blocks: int, rounds: int) -> list[str]:
    """Rows for one kind of call."""
    merged: Times = {mode: [] for mode in MODES}
    native: list[Block] = []
    for _ in range(rounds):
        for mode, measured in run(scenario, blocks, MODES).items():
            merged[mode] += measured
        if scenario == "gloo":
            native += run(scenario, blocks, ("off",), native=True)["off"]
    off = merged["off"]
    wall, cpu, tail = median(off, "wall"), median(off, "cpu"), p99(off)
    rows = [f"| {scenario} | none | {wall / 1e3:.1f} | | | {cpu / 1e3:.1f} | | {tail / 1e3:.0f} |"]
    if native:
        wall_native, cpu_native = median(native, "wall"), median(native, "cpu")
        rows.append(
            f"| {scenario} | torch's own | {wall_native / 1e3:.1f} | "
            f"{(wall_native - wall) / 1e3:+.1f} | | {cpu_native / 1e3:.1f} | "
            f"{(cpu_native - cpu) / 1e3:+.1f} | {p99(native) / 1e3:.0f} |"
        )
    for mode, label in (("nostacks", "HangScope, no stacks"), ("on", "HangScope")):
        middle, low, high = added(merged, mode, "wall")
        rows.append(
            f"| {scenario} | {label} | {median(merged[mode], 'wall') / 1e3:.1f} | "
            f"{middle / 1e3:+.1f} | {low / 1e3:+.1f} to {high / 1e3:+.1f} | "
            f"{median(merged[mode], 'cpu') / 1e3:.1f} | "
            f"{added(merged, mode, 'cpu')[0] / 1e3:+.1f} | {p99(merged[mode]) / 1e3:.0f} |"
        )
    return rows


def step_table(scenario: str, blocks: int) -> list[str]:
    """Rows for one kind of training step."""
    times = run(scenario, blocks, ("off", "on"))
    rows = []
    for what, label in (("wall", "time"), ("cpu", "processor")):
        base = median(times["off"], what)
        middle, low, high = added(times, "on", what)
        rows.append(
            f"| {scenario}, {label} | {base / 1e6:.1f} ms | {middle / 1e3:+.0f} µs | "
            f"{middle / base:+.2%} | {low / base:+.2%} to {high / base:+.2%} |"
        )
    return rows


def main() -> int:
    """Parse and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    parser.add_argument("--only", choices=sorted(SCENARIOS), action="append")
    parser.add_argument("--inside", choices=sorted(SCENARIOS), help=argparse.SUPPRESS)
    parser.add_argument("--blocks", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--modes", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        modes = tuple(arguments.modes.split(","))
        times = SCENARIOS[arguments.inside](arguments.blocks, modes)
        print(json.dumps(times), flush=True)
        sys.stdout.flush()
        os._exit(0)
    wanted = arguments.only or sorted(SCENARIOS)
    scale = 1 if arguments.quick else 6
    calls = [name for name in ("fake", "gloo") if name in wanted]
    steps = [name for name in ("ddp", "fsdp") if name in wanted]
    if calls:
        print("| calls | recorder | µs, median | added | quartiles | processor | added | p99 |")
        print("|---|---|---|---|---|---|---|---|")
    for name in calls:
        print("\n".join(call_table(name, 5 * scale, 1 if arguments.quick else 3)), flush=True)
    if steps:
        print("\n| training step | without | added | share | quartiles |")
        print("|---|---|---|---|---|")
    for name in steps:
        print("\n".join(step_table(name, 8 * scale)), flush=True)
    load = os.getloadavg()[0]
    print(f"\ntorch {_torch_version()}, load {load:.1f} on {os.cpu_count()} processors")
    return 0


def _torch_version() -> str:
    from importlib.metadata import version

    return version("torch")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
