"""How fast job logs are read, compared with only reading and decoding their lines.

    python -m tools.bench_logs                    # section "Job logs" of docs/benchmarks-analyze.md
    python -m tools.bench_logs --before TREE      # another checkout, measured in turn
    python -m tools.bench_logs --mb 4 --no-write
    python -m tools.bench_logs --only "one job" --mb 1000 --before TREE

Every measurement runs in a process of its own. The best of several rounds is reported.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks-analyze.md"
HEADING = "## Job logs"
BARE = """
with open(PATH, "rb") as stream:
    for line in stream:
        line.decode("utf-8", "replace")
"""
READ = """
import gc
gc.disable()  # as the command does while it reads
from hangscope.trace.job_log.read import read_job_log
with open(PATH, "rb") as stream:
    read_job_log(stream, path="job.log", year=2026)
"""
RANKS = 2048
GIGABYTE = (
    "One job's whole log of 1,000 MB (550 of training output, 400 of NCCL's announcements, 50 of "
    'time-outs; `python -m tools.bench_logs --only "one job" --mb 1000 --repeats 2 --before TREE`, '
    "2026-11-28, against commit 6a6c4754, on a busy machine with two cores): 29.7, 22.7, 26.6 "
    "and 23.8 CPU seconds, against 27.4, 23.0, 24.3 and 26.1 in turn with them, which is the "
    "spread of the machine: parts alone, in turn, are faster as often as slower. Only reading the "
    "lines takes 2.5 s. With 1,079 MB of a similar mix, memory grew by 72 MiB in both."
)
Log = Callable[[random.Random], Iterator[str]]


def training(chance: random.Random) -> Iterator[str]:
    """Output of a training job: losses, progress bars, warnings."""
    step = 0
    while True:
        step += 1
        at = f"2026-11-21 10:{step // 60 % 60:02d}:{step % 60:02d},123"
        yield (
            f"[{at}] [INFO] step={step} loss={chance.random() * 5:.4f} lr={chance.random():.3e} "
            f"grad_norm={chance.random():.3f} tokens/s={chance.randrange(10**6)}"
        )
        done = step % 90
        yield "\r".join(
            f"Epoch 3: {p:3d}%|{'█' * (p // 10):10}| {step + p}/100000 [{chance.random():.2f}it/s]"
            for p in range(done, done + 5)
        )
        if step % 9 == 0:
            yield "/usr/lib/python3/checkpoint.py:61: UserWarning: None of the inputs requires grad"
            yield f"[rank{step % RANKS}]:  warnings.warn('epoch {step // 1000} had short batches')"


def watchdogs(chance: random.Random) -> Iterator[str]:
    """Output of the watchdogs of torch 2.6 when every rank times out, with C++ stacks."""
    rank = 0
    while True:
        rank = (rank + 1) % RANKS
        seq, numel = 1000 + chance.randrange(2), chance.randrange(10**8)
        caught = (
            f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
            f"OpType=ALLREDUCE, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for "
            f"{600000 + chance.randrange(90)} milliseconds before timing out."
        )
        label = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        counters = f"last enqueued work: {seq + 3}, last completed work: {seq - 1}"
        for message in (
            caught,
            f"{label} failure detected by watchdog at work sequence id: {seq} PG status: "
            + counters,
            f"{label}First PG on this rank to signal dumping.",
            f"{label}Some NCCL operations have failed or timed out. Due to the asynchronous nature "
            "of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
            f"{label}To avoid data inconsistency, we are taking the entire process down.",
            f"{label}Process group watchdog thread terminated with exception: {caught}",
        ):
            moment = f"1121 10:{rank // 60 % 60:02d}:{rank % 60:02d}.{chance.randrange(10**9):09d}"
            yield f"[rank{rank}]:[E{moment} ProcessGroupNCCL.cpp:632] {message}"
        yield from _stack(chance)
        yield "terminate called after throwing an instance of 'c10::DistBackendError'"
        yield f"  what():  {label}Process group watchdog thread terminated with exception: {caught}"
        yield from _stack(chance)


def _stack(chance: random.Random) -> Iterator[str]:
    yield (
        "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/"
        "ProcessGroupNCCL.cpp:632 (most recent call first):"
    )
    for number, function in enumerate(
        (
            "c10::Error::Error(c10::SourceLocation, std::string) + 0x96",
            "c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<long>) + 0x282",
            "c10d::ProcessGroupNCCL::watchdogHandler() + 0x233",
            "c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d",
            "<unknown function> + 0x94ac3",
        )
    ):
        address = f"0x7f{chance.randrange(1 << 40):010x}"
        yield f"frame #{number}: {function} ({address} in /usr/lib/libtorch_cuda.so)"
    yield ""


def labelled(chance: random.Random) -> Iterator[str]:
    """The same with the prefixes that Kubernetes adds."""
    for line in watchdogs(chance):
        yield f"2026-11-21T10:00:00.{chance.randrange(10**9):09d}Z stderr F {line}"


def announcements(chance: random.Random) -> Iterator[str]:
    """Lines that NCCL prints for every operation."""
    number = 0
    while True:
        number += 1
        rank = number % 64
        yield (
            f"node{rank // 8}:{4000 + rank}:{5000 + rank} [{rank % 8}] NCCL INFO AllReduce: "
            f"opCount {number // 64:x} sendbuff 0x7f{chance.randrange(1 << 40):010x} recvbuff "
            f"0x7f{chance.randrange(1 << 40):010x} count 4096 datatype 9 op 0 root 0 comm "
            f"0x55{rank:010x} [nranks=64] stream 0x56{rank:010x}"
        )


LOGS: dict[str, tuple[tuple[Log, float], ...]] = {
    "training output": ((training, 1),),
    f"time-outs of {RANKS:,} ranks": ((watchdogs, 1),),
    "the same from Kubernetes": ((labelled, 1),),
    "NCCL's announcements": ((announcements, 1),),
    "one job": ((training, 0.55), (announcements, 0.4), (watchdogs, 0.05)),
}
"""By name: what a log consists of, one after another, and its share."""
_MADE = 10_000_000
"""Bytes of each part that differ; larger ones repeat them."""


def write(path: Path, parts: Iterable[tuple[Log, float]], size: int) -> None:
    """Write one log of ``size`` bytes."""
    with path.open("w") as file:
        for log, share in parts:
            lines, made = list[str](), 0
            for line in log(random.Random(7)):
                lines.append(line)
                made += len(line) + 1
                if made >= min(size * share, _MADE):
                    break
            for _ in range(max(round(size * share / made), 1)):
                file.write("\n".join(lines) + "\n")


def measure(program: str, path: Path, tree: Path) -> tuple[float, float]:
    """(CPU seconds, memory growth in MiB) of a program in a fresh process, without imports."""
    imports = "\n".join(line for line in program.splitlines() if line.startswith("from "))
    script = (
        f"import time, resource, json\n{imports}\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        f"held = peak()\nbegan = time.process_time()\n{program.replace('PATH', repr(str(path)))}\n"
        "print(json.dumps([time.process_time() - began, peak() - held]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tree, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )  # fmt: skip
    seconds, grown = json.loads(done.stdout)
    return seconds, grown


def main() -> None:
    """Make the logs, measure, print and write the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--only", choices=LOGS, help="measure this log alone, and write nothing")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    plan = [("bare", BARE, ROOT), ("now", READ, ROOT)]
    if args.before:
        plan.append(("before", READ, args.before))
    best: dict[tuple[str, str], tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(prefix="hangscope-bench-") as folder:
        for name, parts in LOGS.items():
            if args.only not in (None, name):
                continue
            path = Path(folder) / "job.log"
            write(path, parts, int(args.mb * 1e6))
            for what, program, tree in plan * args.repeats:
                found = measure(program, path, tree)
                known = best.get((name, what), (math.inf, 0.0))
                best[name, what] = min(known[0], found[0]), max(known[1], found[1])
                told = f"{found[0]:8.3f} CPU s {found[1]:6.0f} MiB"
                print(f"{name:28} {what:8} {told}", file=sys.stderr, flush=True)
    if args.only:
        return
    section = "\n".join(_section(args, best))
    print(section)
    if not args.no_write:
        PAGE.write_text(PAGE.read_text().partition(HEADING)[0].rstrip() + "\n\n" + section)


def _section(
    args: argparse.Namespace, best: dict[tuple[str, str], tuple[float, float]]
) -> Iterator[str]:
    def speed(name: str, what: str) -> str:
        found = best.get((name, what))
        return "" if found is None else f"{args.mb / found[0]:.3g}"

    yield HEADING
    yield ""
    yield (
        f"Made by `python -m tools.bench_logs`, {time.strftime('%Y-%m-%d')}: logs of {args.mb:g} "
        f"MB each, in MB per CPU second, the best of {args.repeats} rounds measured in turn. "
        "*Bare* only reads and decodes the lines. *Before* is the same reader without what it "
        "now remembers about the shapes of lines; it finds the same."
    )
    yield ""
    yield "| log of | bare | before | now | faster | memory grew by, MiB |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name in LOGS:
        now, before = best[name, "now"], best.get((name, "before"))
        faster = "" if before is None else f"{before[0] / now[0]:.1f} ×"
        speeds = " | ".join(speed(name, what) for what in ("bare", "before", "now"))
        yield f"| {name} | {speeds} | {faster} | {now[1]:.0f} |"
    yield ""
    yield (
        "Lines of training output are skipped a block at a time. A line of a watchdog or of a "
        "stack is passed only to those readers that may know its shape."
    )
    yield ""
    yield GIGABYTE
    yield ""


if __name__ == "__main__":
    main()
