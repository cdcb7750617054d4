"""How fast and how large reading is, measured beside the alternatives in one run.

    python tools/bench_analyze.py                 # everything, table to docs/benchmarks-analyze.md
    python tools/bench_analyze.py --ranks 32 --entries 500 --no-write

Every measurement runs in a process of its own; peak memory is that of the process plus, for
HangScope's workers, their sum. The pickles have the shape torch's own pickler gives them: protocol
2, one object per distinct frame, mentioned by reference.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

FRAMES_DEEP = 20
BASE_NS = 1_750_000_000_000_000_000

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


def frames_pool() -> list[list[dict[str, Any]]]:
    """Call stacks as a training loop has them: the outer half shared, the inner half its own."""
    rng = random.Random(7)
    site = "/opt/conda/lib/python3.11/site-packages"
    outer = [
        {"name": n, "filename": f, "line": rng.randrange(10, 2000)}
        for n, f in (
            ("wrapper", f"{site}/torch/distributed/c10d_logger.py"),
            ("_call_impl", f"{site}/torch/nn/modules/module.py"),
            ("_wrapped_call_impl", f"{site}/torch/nn/modules/module.py"),
            ("forward_backward", "/workspace/train/megatron/core/pipeline_parallel/schedules.py"),
            ("train_step", "/workspace/train/megatron/training/training.py"),
            ("train", "/workspace/train/megatron/training/training.py"),
            ("pretrain", "/workspace/train/megatron/training/training.py"),
            ("main", "/workspace/train/pretrain_gpt.py"),
            ("<module>", "/workspace/train/pretrain_gpt.py"),
            ("__call__", f"{site}/torch/utils/_contextlib.py"),
        )
    ]
    stacks = []
    for site_number in range(24):
        inner = [
            {
                "name": f"layer_{site_number}_{i}",
                "filename": f"/workspace/train/megatron/core/part_{(site_number * 3 + i) % 17}.py",
                "line": rng.randrange(10, 900),
            }
            for i in range(FRAMES_DEEP - len(outer))
        ]
        stacks.append([*inner, *outer])
    return stacks


OPS = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_to_all", "broadcast")


def one_dump(rank: int, ranks: int, entries: int, stacks: list[list[dict[str, Any]]]) -> Any:
    """A dump of one rank in a mesh of a default, a tensor and a data parallel group."""
    tensor = list(range(rank // 8 * 8, min(rank // 8 * 8 + 8, ranks)))
    data = list(range(rank % 8, ranks, 8))
    groups = [("0", "default_pg", list(range(ranks))), (f"{1 + rank // 8}", "tp", tensor)]
    groups.append((f"{1000 + rank % 8}", "dp", data))
    seqs = [0, 0, 0]
    rows = []
    for i in range(entries):
        g = 0 if i % 40 == 0 else 1 + i % 2
        seqs[g] += 1
        op = OPS[i % 24 % 5] if g else "all_reduce"
        small, large = 1024 << (i % 5), (1024 << (i % 5)) * len(groups[g][2])
        ins = large if op == "_reduce_scatter_base" else small
        outs = large if op == "_all_gather_base" else small
        last = i == entries - 1
        created = BASE_NS + i * 10**7 + rank * 1000
        rows.append(
            {
                "frames": list(stacks[i % len(stacks)]),
                "record_id": i,
                "pg_id": g,
                "process_group": groups[g][:2],
                "thread_name": "python3",
                "thread_id": "140597754833792",
                "collective_seq_id": seqs[g],
                "p2p_seq_id": 0,
                "op_id": seqs[g],
                "profiling_name": f"nccl:{op}",
                "time_created_ns": created,
                "input_sizes": [[ins, 128]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[outs, 128]],
                "output_dtypes": ["BFloat16"],
                "state": "scheduled" if last else "completed",
                "time_discovered_started_ns": None if last else created + 10**5,
                "time_discovered_completed_ns": None if last else created + 10**6,
                "retired": not last,
                "timeout_ms": 600000,
                "is_p2p": False,
            }
        )
    config = {n: {"name": n, "desc": d, "ranks": str(r)} for n, d, r in groups}
    status = {
        str(g): {
            "last_enqueued_collective": seqs[g],
            "last_started_collective": -1,
            "last_completed_collective": seqs[g] - (1 if g == rows[-1]["pg_id"] else 0),
        }
        for g in range(3)
    }
    return {
        "version": "2.10",
        "pg_config": config,
        "pg_status": status,
        "nccl_version": "2.27.3",
        "entries": rows,
    }


def write_pickles(folder: Path, ranks: int, entries: int, *, shared: bool = True) -> int:
    """One pickle per rank; returns bytes. Without ``shared`` no frame is mentioned twice."""
    folder.mkdir(parents=True)
    stacks = frames_pool()
    total = 0
    for rank in range(ranks):
        document = one_dump(rank, ranks, entries, stacks)
        if not shared:
            for row in document["entries"]:
                row["frames"] = [dict(frame) for frame in row["frames"]]
        data = pickle.dumps(document, 2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
        total += len(data)
    return total


def write_rings(folder: Path, ranks: int, entries: int) -> int:
    """Rings with the content of the pickles, through the real ring writer; returns bytes.

    Eight ranks' records are made one by one; the others repeat theirs in groups of their own.
    """
    import numpy as np

    from hangscope.ring import layout
    from hangscope.ring.writer import LAST_RECORD_CELL, RingIdentity, RingWriter

    folder.mkdir(parents=True)
    stacks = frames_pool()
    recipes: dict[int, tuple[list[tuple[Any, bytes]], bytes]] = {}
    total = 0
    for rank in range(ranks):
        path = folder / f"rank_{rank}.ring"
        identity = RingIdentity(run_id="bench", rank=rank, world_size=ranks, host="node0", pid=1)
        ring = RingWriter(path, identity, entries, values_bytes=1 << 18)
        block = rank // 8 * 8
        for name, desc, members in (
            ("0", "default_pg", list(range(ranks))),
            (f"{1 + rank // 8}", "tp", list(range(block, min(block + 8, ranks)))),
            (f"{1000 + rank % 8}", "dp", list(range(rank % 8, ranks, 8))),
        ):
            ring.add_group(name, desc, members, "nccl", 0, members.index(rank), observable=True)
        if rank % 8 not in recipes:
            recipes[rank % 8] = recipe(one_dump(rank, ranks, entries, stacks)["entries"])
        values, table = recipes[rank % 8]
        identifiers: list[int] = []
        for kind, value in values:
            if kind is layout.ValueKind.STACK:
                value = np.array(identifiers, "<u4")[np.frombuffer(value, "<u4")].tobytes()
            identifiers.append(ring.intern(kind, value))
        ring.memory[ring.slot_at(1) : ring.slot_at(1) + len(table)] = renumbered(table, identifiers)
        ring.set_cell(LAST_RECORD_CELL, entries)
        total += path.stat().st_size
    return total


def recipe(rows: list[dict[str, Any]]) -> tuple[list[tuple[Any, bytes]], bytes]:
    """What must be interned, in order, and the slots with positions in that list as ids.

    Frames come first: stacks hold the positions of theirs, which each ring turns into ids.
    """
    import numpy as np

    from hangscope.ring import layout

    kinds = layout.ValueKind
    frames: dict[bytes, int] = {}
    for row in rows:
        for f in row["frames"]:
            frames.setdefault(f"{f['name']}\0{f['filename']}\0{f['line']}".encode(), len(frames))
    values: dict[tuple[Any, bytes], int] = {(kinds.FRAME, raw): i for raw, i in frames.items()}
    table = np.zeros(len(rows), layout.SLOT)
    for i, row in enumerate(rows):
        signature = json.dumps(
            {
                "op": row["profiling_name"],
                "in": row["input_sizes"],
                "out": row["output_sizes"],
                "in_dtypes": row["input_dtypes"],
                "out_dtypes": row["output_dtypes"],
            }
        ).encode()
        places = [
            frames[f"{f['name']}\0{f['filename']}\0{f['line']}".encode()] for f in row["frames"]
        ]
        stack = np.array(places, "<u4").tobytes()
        slot = table[i]
        slot["record_id"] = slot["commit"] = i + 1
        slot["created_ns"] = row["time_created_ns"]
        slot["completed_ns"] = row["time_discovered_completed_ns"] or 0
        slot["collective_seq"] = slot["op_id"] = row["collective_seq_id"]
        slot["group"] = row["pg_id"] + 1
        slot["signature"] = values.setdefault((kinds.SIGNATURE, signature), len(values))
        slot["stack"] = values.setdefault((kinds.STACK, stack), len(values))
        slot["peer"] = slot["root"] = -1
        slot["input_numel"] = slot["output_numel"] = row["input_sizes"][0][0] * 128
        slot["timeout_ms"] = row["timeout_ms"]
        slot["state"] = 2 if row["state"] == "completed" else 0
    return list(values), table.tobytes()


def renumbered(table: bytes, identifiers: list[int]) -> bytes:
    """Slots with the ids that this ring gave to the interned values."""
    import numpy as np

    from hangscope.ring import layout

    slots = np.frombuffer(table, layout.SLOT).copy()
    ids = np.array(identifiers, np.uint32)
    slots["signature"] = ids[slots["signature"]]
    slots["stack"] = ids[slots["stack"]]
    return slots.tobytes()


def measure(program: str, folder: Path, expected: int) -> tuple[float, float, float]:
    """(seconds, CPU seconds, peak MiB) of a program in a fresh process, imports not counted.

    Memory is that of the process and its children together, with their imports; pages they share
    count once. It is sampled, and never below the process's own high-water mark.
    """
    header = "import os, time, resource, json, sys\n"
    if "load_trace" in program:
        header += "import hangscope.trace.load, hangscope.trace.from_ring\n"
    body = program.replace("FOLDER", repr(str(folder))).replace("EXPECTED", str(expected))
    script = (
        f"{header}spent = sum(os.times()[:4])\nbegan = time.perf_counter()\n{body}\n"
        "took = time.perf_counter() - began\nspent = sum(os.times()[:4]) - spent\n"
        "own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "sys.stderr.write(json.dumps([took, spent, own / 1024]))\n"
    )
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=said, cwd=ROOT
        )
        sampled = 0.0
        while process.poll() is None:
            sampled = max(sampled, sum(map(share_mib, family(process.pid))))
            time.sleep(0.01)
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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-torchfrtrace", action="store_true")
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep the data here and use it again")
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
        path.write_text(report)


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
    many = made("many", lambda f: write_rings(f, args.ring_ranks, args.entries))
    parts = {}
    for part in (4, 2, 1):
        n = args.entries // part
        folder = made(f"pickles_{part}", lambda f, n=n: write_pickles(f, args.ranks, n))
        parts[args.ranks * n] = folder
    plan = [
        (BARE, LOAD_PICKLES, pickles, 0, args.repeats),
        (OURS, LOAD_TRACE, pickles, total, args.repeats),
        (BARE_OWN, LOAD_PICKLES, own, 0, args.repeats),
        (OURS_OWN, LOAD_TRACE, own, total, args.repeats),
        (RINGS, LOAD_TRACE, rings, total, args.repeats),
        *((f"{n:,}", LOAD_TRACE, folder, n, args.repeats) for n, folder in parts.items()),
        (MANY, LOAD_TRACE, many, args.ring_ranks * args.entries, 1),
    ]
    if not args.skip_torchfrtrace:
        plan.append((STOCK, TORCHFRTRACE, pickles, 0, 1))
    best: dict[str, tuple[float, float, float]] = {}
    # Round by round, so that whatever else the machine does meets all alike; the best of each.
    for turn in range(args.repeats):
        for name, program, folder, expected, repeats in plan:
            if turn < repeats:
                found = measure(program, folder, expected)
                known = best.get(name, found)
                best[name] = (
                    min(known[0], found[0]),
                    min(known[1], found[1]),
                    max(known[2], found[2]),
                )
                print(f"{name:56} {found[0]:8.2f} s {found[1]:8.2f} CPU s {found[2]:6.0f} MiB",
                      file=sys.stderr, flush=True)  # fmt: skip
    return page(args, best, list(parts))


BARE = "bare `pickle.load`, one process"
OURS = "HangScope, the same pickles"
BARE_OWN = "bare `pickle.load`, no frame shared"
OURS_OWN = "HangScope, the same pickles, no frame shared"
RINGS = "HangScope, rings of the same content"
MANY = "HangScope, many rings"
STOCK = "`torchfrtrace` (import of torch not counted)"


def page(
    args: argparse.Namespace, best: dict[str, tuple[float, float, float]], sizes: list[int]
) -> str:
    """The figures as Markdown."""
    shown = [name for name in (BARE, OURS, BARE_OWN, OURS_OWN, RINGS, STOCK, MANY) if name in best]
    ring = best[RINGS][0]
    lines = [
        "# Reading: time and memory",
        "",
        f"Made by `python tools/bench_analyze.py` on {platform.machine()}, Python "
        f"{platform.python_version()}, {cores()} cores, {time.strftime('%Y-%m-%d')}; the best of "
        f"{args.repeats} rounds. {args.ranks} ranks, {args.entries:,} entries each, {FRAMES_DEEP} "
        f"frames per entry; many rings: {args.ring_ranks:,} of {args.entries:,} records.",
        "",
        "| | seconds | CPU seconds | peak MiB |",
        "|---|---:|---:|---:|",
        *(f"| {n} | {best[n][0]:.2f} | {best[n][1]:.2f} | {best[n][2]:.0f} |" for n in shown),
        "",
        "| claim | measured | wanted |",
        "|---|---:|---:|",
        f"| time against bare `pickle.load` | {best[OURS][0] / best[BARE][0]:.2f} × | "
        "at most 1.3 × |",
        f"| the same, no frame shared | {best[OURS_OWN][0] / best[BARE_OWN][0]:.2f} × | "
        "at most 1.3 × |",
        f"| rings against bare `pickle.load` | {best[BARE][0] / ring:.1f} × faster | |",
        f"| the same, no frame shared | {best[BARE_OWN][0] / ring:.1f} × faster | at least 20 × |",
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
        "Growth with the number of records (pickles):",
        "",
        "| records | seconds | µs per record |",
        "|---:|---:|---:|",
        *(
            f"| {n:,} | {best[f'{n:,}'][0]:.2f} | {best[f'{n:,}'][0] / n * 1e6:.2f} |"
            for n in sizes
        ),
        "",
        "The pickles have the shape of torch's own: one object per distinct frame, mentioned by "
        "reference. Where no frame is shared, every frame is a dictionary of its own. Peak memory "
        "is that of the process and its workers together, with their imports.",
        "",
        f"Load average when this ended: {os.getloadavg()[0]:.1f} on {cores()} cores. Where it is "
        "far above what one measurement causes, others were at work: HangScope needs all cores for "
        "its time with pickles, the alternatives one, so compare CPU seconds divided by cores.",
        "",
    ]
    return "\n".join(lines)


def cores() -> int:
    """Cores this run had."""
    from hangscope.trace.load_parallel import cores as available

    return available()


if __name__ == "__main__":
    main()
