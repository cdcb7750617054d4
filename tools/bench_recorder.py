"""What recording costs: added time per call and per training step, measured in one run.

    python -m tools.bench_recorder           # everything, as Markdown tables, fifty minutes
    python -m tools.bench_recorder --quick

Recording is switched on and off in turn inside the same process, so that other load on the machine
affects both alike. It is switched block by block for calls (see `tools.bench_calls`) and step by
step for training steps (`tools.bench_steps`). Figures are medians of paired differences, with a
95 % confidence interval of that median (bootstrap). Torch's own recorder can only be selected when
a process starts, so processes with it alternate with processes without it. On a machine with a GPU,
calls and steps on the GPU are measured as well.

HangScope is measured twice, with its hot path in Python and compiled (``hangscope compile``, which
happens first). Which of them a process has is decided when it starts, so each has baselines of its
own.

CPU time is measured in addition to elapsed time: of the calling thread for calls (issuing and
waiting), and of the whole process for training steps. CPU time is what a busy machine distorts
least.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hangscope.recording.compiled.build import build
from hangscope.recording.compiled.load import PLACE
from tools import bench_calls, bench_steps
from tools.bench_calls import Block, Times
from tools.bench_steps import StepTimes
from tools.ports import free_port

MODES = ("off", "on", "nostacks")
SECONDS_PER_STEP_TABLE = {"ddp": 140.0, "fsdp": 140.0, "ddp-long": 360.0, "fsdp-long": 360.0,
                          "ddp-gpu": 60.0, "fsdp-gpu": 60.0}  # fmt: skip
RESAMPLES = 2000

CALLS: dict[str, Callable[[int, tuple[str, ...]], Times]] = {
    "fake": bench_calls.fake, "cold": bench_calls.cold, "gloo": bench_calls.gloo,
    "nccl": bench_calls.nccl,
}  # fmt: skip
STEPS: dict[str, Callable[[float], StepTimes]] = {
    "ddp": bench_steps.ddp,
    "fsdp": bench_steps.fsdp,
    "ddp-long": functools.partial(bench_steps.ddp, size=bench_steps.LONG),
    "fsdp-long": functools.partial(bench_steps.fsdp, size=bench_steps.LONG),
    "ddp-gpu": functools.partial(bench_steps.ddp, size=bench_steps.ON_GPU, device="cuda"),
    "fsdp-gpu": functools.partial(bench_steps.fsdp, size=bench_steps.ON_GPU, device="cuda"),
}
ON_GPU = frozenset({"nccl", "ddp-gpu", "fsdp-gpu"})
ALONE = frozenset({"fake", "cold", "nccl", "ddp-gpu"})
"""Scenarios with one process. FSDP2 needs two to have collectives; they share a single GPU."""
NATIVE = frozenset({"gloo", "nccl"})
"""Calls that torch's own recorder sees."""
LABELS = {
    "fake": "fake", "cold": "fake, cold", "gloo": "Gloo", "ddp": "DDP", "fsdp": "FSDP2",
    "ddp-long": "DDP, longer", "fsdp-long": "FSDP2, longer",
    "nccl": "NCCL", "ddp-gpu": "DDP on a GPU", "fsdp-gpu": "FSDP2 on a GPU",
}  # fmt: skip


def run(
    scenario: str,
    amount: float,
    modes: tuple[str, ...] = (),
    *,
    native: bool = False,
    compiled: Path | None = None,
) -> Any:
    """Run a scenario in separate processes; returns each rank's output.

    ``amount`` is blocks for calls, seconds for steps. ``native``: with torch's own recorder.
    ``compiled``: the directory with the compiled hot path; None for Python's.
    """
    size = 1 if scenario in ALONE else 2
    world = "1" if scenario in ALONE & ON_GPU else "2"
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch:
        running = []
        for rank in range(size):
            env = {k: v for k, v in os.environ.items() if not k.startswith(("HANGSCOPE", "TORCH_"))}
            env |= {
                PLACE: str(compiled or ""), "HANGSCOPE_COMPILED": "0" if compiled is None else "1",
                "RANK": str(rank), "WORLD_SIZE": world, "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "HANGSCOPE_MONITOR": "0", "HANGSCOPE_FAKE": "1", "SCRATCH": scratch,
                "HANGSCOPE_DIR": scratch, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                "TORCH_FR_BUFFER_SIZE": "10000" if native else "0",
            }  # fmt: skip
            command = [sys.executable, "-m", "tools.bench_recorder", "--inside", scenario,
                       "--amount", str(amount), "--modes", ",".join(modes)]  # fmt: skip
            out = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read below; a pipe could fill up
            complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - likewise
            process = subprocess.Popen(command, env=env, stdout=out, stderr=complaints)
            running.append((process, out, complaints))
        results = []
        for process, out, complaints in running:
            try:
                code = process.wait(timeout=900)
            finally:
                for other, *_ in running:
                    if process.returncode != 0 and other.poll() is None:
                        other.kill()
            if code:
                complaints.seek(0)
                raise RuntimeError(f"{scenario} failed with {code}\n{complaints.read()[-4000:]}")
            out.seek(0)
            results.append(json.loads(out.read().splitlines()[-1]))
        return results


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median, and its 95 % interval by bootstrap."""
    rng = random.Random(1)
    medians = sorted(
        statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return (
        statistics.median(values),
        medians[round(RESAMPLES * 0.025)],
        medians[round(RESAMPLES * 0.975) - 1],
    )


def added(times: Times, mode: str, what: str) -> tuple[float, float, float]:
    """What a mode adds, in nanoseconds, block by block: median and interval."""
    return interval(
        [
            _level(with_it, what) - _level(without, what)
            for with_it, without in zip(times[mode], times["off"], strict=True)
        ]
    )


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


def call_table(scenario: str, blocks: int, rounds: int, compiled: Path) -> list[str]:
    """Rows for one kind of call."""
    hot_paths = {"": None, ", compiled": compiled}
    merged: dict[str, Times] = {suffix: {mode: [] for mode in MODES} for suffix in hot_paths}
    native: list[Block] = []
    for _ in range(rounds):
        for suffix, place in hot_paths.items():
            for mode, measured in run(scenario, blocks, MODES, compiled=place)[0].items():
                merged[suffix][mode] += measured
        if scenario in NATIVE:
            native += run(scenario, blocks, ("off",), native=True)[0]["off"]
    off = [block for times in merged.values() for block in times["off"]]
    name = LABELS[scenario]
    wall, cpu, tail = median(off, "wall"), median(off, "cpu"), p99(off)
    rows = [f"| {name} | none | {wall / 1e3:.1f} | | | {cpu / 1e3:.1f} | | {tail / 1e3:.0f} |"]
    if native:
        wall_native, cpu_native = median(native, "wall"), median(native, "cpu")
        rows.append(
            f"| {name} | torch's own | {wall_native / 1e3:.1f} | "
            f"{(wall_native - wall) / 1e3:+.1f} | | {cpu_native / 1e3:.1f} | "
            f"{(cpu_native - cpu) / 1e3:+.1f} | {p99(native) / 1e3:.0f} |"
        )
    for suffix, times in merged.items():
        for mode, label in (
            ("nostacks", f"HangScope{suffix}, no stacks"),
            ("on", f"HangScope{suffix}"),
        ):
            middle, low, high = added(times, mode, "wall")
            rows.append(
                f"| {name} | {label} | {median(times[mode], 'wall') / 1e3:.1f} | "
                f"{middle / 1e3:+.2f} | {low / 1e3:+.2f} to {high / 1e3:+.2f} | "
                f"{median(times[mode], 'cpu') / 1e3:.1f} | "
                f"{added(times, mode, 'cpu')[0] / 1e3:+.1f} | {p99(times[mode]) / 1e3:.0f} |"
            )
    return rows


def step_table(scenario: str, seconds: float, compiled: Path | None) -> list[str]:
    """Rows for one kind of training step; both ranks' figures together."""
    ranks = run(scenario, seconds, compiled=compiled)
    # A step ends on both ranks at once, so their times are one measurement: average them.
    wall, cpu = (
        [
            tuple(map(statistics.fmean, zip(*both, strict=True)))
            for both in zip(*(rank[what] for rank in ranks), strict=True)
        ]
        for what in ("wall", "cpu")
    )
    inside = list(map(statistics.fmean, zip(*(rank["inside"] for rank in ranks), strict=True)))
    added_by = {
        "time": (wall, _differences(wall)),
        "processor": (cpu, _differences(cpu)),
        "in the hot path": (wall, inside),
    }
    name = LABELS[scenario] + ("" if compiled is None else ", compiled")
    watcher = sum(rank["watcher_cpu"] for rank in ranks) / sum(rank["seconds"] for rank in ranks)
    share = watcher / 1e9
    rows = []
    for label, (quadruples, added_ns) in added_by.items():
        if not added_ns:
            continue
        base = statistics.median(value for q in quadruples for value in q[:2])
        middle, low, high = interval(added_ns)
        rows.append(
            f"| {name}, {label} | {base / 1e6:.1f} ms | {middle / 1e3:+.0f} µs | "
            f"{middle / base:+.2%} | {low / base:+.2%} to {high / base:+.2%} | {share:+.2%} | "
            f"{middle / base + share:+.2%} | {ranks[0]['records']:.0f} | {2 * len(quadruples)} |"
        )
    return rows


def _differences(quadruples: list[tuple[float, ...]]) -> list[float]:
    """What recording adds to a step, in each quadruple (off, off, on, on)."""
    return [(q[2] + q[3] - q[0] - q[1]) / 2 for q in quadruples]


def main() -> int:
    """Parse and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="take a sixth of the time")
    parser.add_argument("--only", choices=sorted(LABELS), action="append")
    parser.add_argument("--inside", choices=sorted(LABELS), help=argparse.SUPPRESS)
    parser.add_argument("--amount", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--modes", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        result: Any
        if arguments.inside in CALLS:
            modes = tuple(arguments.modes.split(","))
            result = CALLS[arguments.inside](int(arguments.amount), modes)
        else:
            result = asdict(STEPS[arguments.inside](arguments.amount))
        print(json.dumps(result), flush=True)
        os._exit(0)
    wanted = arguments.only or sorted(LABELS.keys() if _has_gpu() else LABELS.keys() - ON_GPU)
    calls, steps = ([name for name in names if name in wanted] for names in (CALLS, STEPS))
    scale = 1 if arguments.quick else 6
    if calls:
        print("| calls | recorder | µs, median | added | 95 % | processor | added | p99 |")
        print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        rounds = 1 if arguments.quick else 3
        if calls:
            compiled = build(Path(folder) / "plain").parent
        for name in calls:
            print("\n".join(call_table(name, 5 * scale, rounds, compiled)), flush=True)
        if steps:
            metered = build(Path(folder) / "metered", metered=True).parent
            _print_steps(steps, scale / 6, metered)
    load = os.getloadavg()[0]
    print(f"\ntorch {_torch_version()}, load {load:.1f} on {os.cpu_count()} processors")
    return 0


def _print_steps(steps: list[str], share: float, compiled: Path) -> None:
    print(
        "\n| step, two ranks | without | added | share | 95 % | watcher | together | records "
        "| pairs |\n|---|---|---|---|---|---|---|---|---|"
    )
    for name in steps:
        seconds = SECONDS_PER_STEP_TABLE[name] * share
        for place in (None, compiled):
            print("\n".join(step_table(name, seconds, place)), flush=True)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available() and torch.distributed.is_nccl_available()


def _torch_version() -> str:
    from importlib.metadata import version

    return version("torch")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
