"""How fast reading is and how much memory it takes, compared with the alternatives in one run.

Memory is sampled in a separate round: reading each process's share of memory takes CPU time that a
program using all cores would otherwise have.

    python -m tools.bench_analyze                 # everything, table to docs/benchmarks-analyze.md
    python -m tools.bench_analyze --ranks 32 --entries 500 --no-write

Every measurement runs in a process of its own. Peak memory is that of this process; for HangScope,
it is the sum of the process and its workers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.bench_data import FRAMES_DEEP, write_pickles, write_rings
from tools.bench_logs import HEADING

ROOT = Path(__file__).resolve().parent.parent
LOAD_PICKLES = """
import pickle, pathlib
for path in sorted(pathlib.Path(FOLDER).iterdir()):
    with open(path, "rb") as file:
        pickle.load(file)
"""
LOAD_TRACE = """
from hangscope.trace.load import load_trace
trace = load_trace([FOLDER])
assert len(trace.records) == EXPECTED, len(trace.records)
"""
TORCHFRTRACE = """
import io, contextlib
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.config_manager import JobConfig
import time
began = time.perf_counter()  # the import of torch is not counted
args = JobConfig().parse_args([FOLDER, "--prefix", "nccl_trace_rank_"])
from torch.distributed.flight_recorder.components.loader import read_dir
from torch.distributed.flight_recorder.components.builder import build_db
details, version = read_dir(args)
db = build_db(details, args, version)
"""


def measure(
    program: str, folder: Path, expected: int, *, memory: bool = False
) -> tuple[float, float, float]:
    """(seconds, CPU seconds, peak MiB) of a program in a fresh process, not counting imports.

    With ``memory``, the peak is that of the process and its children together, including imports;
    shared pages count once. It is sampled, and at least the process's own high-water mark.
    """
    header = (
        "import time, resource, json, sys\n"
        "def cpu():\n"
        "    used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "    return time.process_time() + used.ru_utime + used.ru_stime\n"
    )
    if "load_trace" in program:
        header += "import hangscope.trace.load, hangscope.trace.rings.read\n"
    body = program.replace("FOLDER", repr(str(folder))).replace("EXPECTED", str(expected))
    script = (
        f"{header}spent = cpu()\nbegan = time.perf_counter()\n{body}\n"
        "took = time.perf_counter() - began\nspent = cpu() - spent\n"
        "own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "sys.stderr.write(json.dumps([took, spent, own / 1024]))\n"
    )
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=said, cwd=ROOT
        )
        sampled = 0.0
        while memory and process.poll() is None:
            sampled = max(sampled, sum(map(share_mib, family(process.pid))))
            time.sleep(0.01)
        process.wait()
        said.seek(0)
        text = said.read()
    if process.returncode:
        raise SystemExit(text)
    took, spent, own = json.loads(text[text.rindex("[") :])
    return took, spent, max(sampled, own)


def family(pid: int) -> list[int]:
    """A process and its children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *map(int, children)]


def share_mib(pid: int) -> float:
    """A process's proportional share of memory."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except (OSError, ValueError):
        pass
    return 0.0


def main() -> None:
    """Make the data, measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--ring-ranks", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--skip-torchfrtrace", action="store_true")
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep the data here and reuse it")
    args = parser.parse_args()
    base = args.folder or Path(tempfile.mkdtemp(prefix="hangscope-bench-"))
    try:
        report = run(args, base)
    finally:
        if args.folder is None:
            shutil.rmtree(base, ignore_errors=True)
    print(report)
    if not args.no_write:
        path = ROOT / "docs" / "benchmarks-analyze.md"
        path.parent.mkdir(exist_ok=True)
        of_logs = path.read_text().partition(HEADING)[1:] if path.exists() else ()
        path.write_text("\n".join((report, "".join(of_logs))) if any(of_logs) else report)


def run(args: argparse.Namespace, base: Path) -> str:
    """All measurements as a Markdown page."""
    total = args.ranks * args.entries

    def made(name: str, make: Any) -> Path:
        folder = base / name
        if not folder.exists():
            make(folder)
        return folder

    pickles = made("pickles", lambda f: write_pickles(f, args.ranks, args.entries))
    own = made("unshared", lambda f: write_pickles(f, args.ranks, args.entries, shared=False))
    rings = made("rings", lambda f: write_rings(f, args.ranks, args.entries))
    apart = made("apart", lambda f: write_rings(f, args.ranks, args.entries, apart=61))
    many = made("many", lambda f: write_rings(f, args.ring_ranks, args.entries))
    parts: dict[str, tuple[Path, int]] = {}
    sizes = [args.ranks * (args.entries // part) for part in (4, 2, 1)]
    for size in sizes:
        n = size // args.ranks
        for kind, write in (("pickles", write_pickles), ("rings", write_rings)):
            folder = made(f"{kind}_{n}", lambda f, n=n, write=write: write(f, args.ranks, n))
            parts[f"{kind} {size}"] = folder, size
    plan = [
        (BARE, LOAD_PICKLES, pickles, 0, args.repeats),
        (OURS, LOAD_TRACE, pickles, total, args.repeats),
        (BARE_OWN, LOAD_PICKLES, own, 0, args.repeats),
        (OURS_OWN, LOAD_TRACE, own, total, args.repeats),
        (RINGS, LOAD_TRACE, rings, total, args.repeats),
        (APART, LOAD_TRACE, apart, total, args.repeats),
        *((name, LOAD_TRACE, folder, n, args.repeats) for name, (folder, n) in parts.items()),
        (MANY, LOAD_TRACE, many, args.ring_ranks * args.entries, 1),
    ]
    if not args.skip_torchfrtrace:
        plan.append((STOCK, TORCHFRTRACE, pickles, 0, 1))
    os.sync()  # flush the gigabytes just written, or their write-back would be measured as well
    best: dict[str, tuple[float, float, float]] = {}
    # Round by round, so that other load affects all programs alike; the best round counts.
    for turn in range(-1, args.repeats):  # the first round is for memory only
        for name, program, folder, expected, repeats in plan:
            if turn < repeats:
                found = measure(program, folder, expected, memory=turn < 0)
                if turn < 0:
                    found = (math.inf, math.inf, found[2])
                known = best.get(name, found)
                best[name] = (
                    min(known[0], found[0]),
                    min(known[1], found[1]),
                    max(known[2], found[2]),
                )
                print(f"{name:56} {found[0]:8.2f} s {found[1]:8.2f} CPU s {found[2]:6.0f} MiB",
                      file=sys.stderr, flush=True)  # fmt: skip
    return page(args, best, sizes)


BARE = "bare `pickle.load`, one process"
OURS = "HangScope, the same pickles"
BARE_OWN = "bare `pickle.load`, no frame shared"
OURS_OWN = "HangScope, the same pickles, no frame shared"
RINGS = "HangScope, rings of the same content"
APART = "HangScope, rings of ranks up to 60 operations apart"
MANY = "HangScope, many rings"
STOCK = "`torchfrtrace` (import of torch not counted)"


def page(
    args: argparse.Namespace, best: dict[str, tuple[float, float, float]], sizes: list[int]
) -> str:
    """The figures as Markdown."""
    shown = [
        name for name in (BARE, OURS, BARE_OWN, OURS_OWN, RINGS, APART, STOCK, MANY) if name in best
    ]
    ring, apart = best[RINGS][0], best[APART][0]
    lines = [
        "# Reading: time and memory",
        "",
        f"Made by `python -m tools.bench_analyze` on {platform.machine()}, Python "
        f"{platform.python_version()}, {cores()} cores, {time.strftime('%Y-%m-%d')}; the best of "
        f"{args.repeats} rounds. There are {args.ranks} ranks with {args.entries:,} entries each "
        f"and {FRAMES_DEEP} frames per entry. Many rings means {args.ring_ranks:,} rings of "
        f"{args.entries:,} records each.",
        "",
        "| | seconds | CPU seconds | peak MiB |",
        "|---|---:|---:|---:|",
        *(f"| {n} | {best[n][0]:.3g} | {best[n][1]:.3g} | {best[n][2]:.0f} |" for n in shown),
        "",
        "| claim | measured | wanted |",
        "|---|---:|---:|",
        f"| time against bare `pickle.load` | {best[OURS][0] / best[BARE][0]:.2f} × | "
        "at most 1.3 × |",
        f"| the same, no frame shared | {best[OURS_OWN][0] / best[BARE_OWN][0]:.2f} × | "
        "at most 1.3 × |",
        f"| rings against bare `pickle.load`, no frame shared | {best[BARE_OWN][0] / ring:.1f} × "
        "faster | at least 20 × |",
        "| rings against HangScope on the pickles, no frame shared | "
        f"{best[OURS_OWN][0] / ring:.1f} × faster | at least 20 × |",
        f"| rings against bare `pickle.load` | {best[BARE][0] / ring:.1f} × faster | "
        "at least 20 × |",
        f"| rings against HangScope on the pickles | {best[OURS][0] / ring:.1f} × faster "
        f"({best[OURS][1] / best[RINGS][1]:.1f} × in CPU seconds) | at least 20 × |",
        f"| rings of ranks that stand apart, against bare `pickle.load` | "
        f"{best[BARE][0] / apart:.1f} × faster | |",
    ]
    if STOCK in best:
        lines.append(
            f"| against `torchfrtrace` | {best[STOCK][0] / best[OURS][0]:.1f} × faster | "
            "at least 8 × |"
        )
        lines.append(
            f"| memory against it | 1/{best[STOCK][2] / best[OURS][2]:.1f} | at most 1/5 |"
        )
    lines += [
        f"| many rings | {best[MANY][0]:.1f} s, {best[MANY][2] / 1024:.2f} GiB | "
        "under 60 s and 4 GiB |",
        "",
        "Growth with the number of records:",
        "",
        "| records | pickles, s | µs per record | rings, s | µs per record |",
        "|---:|---:|---:|---:|---:|",
        *(growth(best, n) for n in sizes),
        "",
        "The pickles have the same structure as torch's own: one object per distinct frame, "
        "stored by reference. Where no frame is shared, every frame is a separate dictionary. "
        "Rings of the same content name the same operations in the same order, as they do when "
        "ranks run one program and have reached the same place. What is found for one ring then "
        "holds for the next. Where ranks are apart, it is found for each ring "
        "separately. A third of reading rings is copying memory. Anything else that uses the "
        "same memory, including other virtual machines on the same host, slows it by up to a "
        "fifth, and no load average shows that. Peak memory is that of the process and its "
        "workers together, including their imports, measured in a separate round.",
        "",
        f"Load average at the end of the run: {os.getloadavg()[0]:.1f} on {cores()} cores. If it "
        "is far above what one measurement causes, other programs were running. HangScope needs "
        "all cores to reach its time on pickles, and the alternatives need one, so compare CPU "
        "seconds divided by cores then.",
        "",
    ]
    return "\n".join(lines)


def growth(best: dict[str, tuple[float, float, float]], records: int) -> str:
    """One row of the table of memory growth."""
    pickles, rings = best[f"pickles {records}"][0], best[f"rings {records}"][0]
    return (
        f"| {records:,} | {pickles:.2f} | {pickles / records * 1e6:.2f} "
        f"| {rings:.3f} | {rings / records * 1e6:.2f} |"
    )


def cores() -> int:
    """Number of cores available to this run."""
    from hangscope.trace.loading.parallel import cores as available

    return available()


if __name__ == "__main__":
    main()
