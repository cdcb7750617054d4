"""Generates the benchmark data: Flight Recorder pickles, and rings with the same content.

The pickles have the structure that torch's own pickler gives them: protocol 2, one object per
distinct frame, stored by reference.
"""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

FRAMES_DEEP = 20
BASE_NS = 1_750_000_000_000_000_000


def frames_pool() -> list[list[dict[str, Any]]]:
    """Call stacks like those of a training loop: outer half shared, inner half distinct."""
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
    """The dump of one rank in a default, a tensor-parallel and a data-parallel group."""
    tensor = list(range(rank // 8 * 8, min(rank // 8 * 8 + 8, ranks)))
    data = list(range(rank % 8, ranks, 8))
    groups = [("0", "default_pg", list(range(ranks))), (f"{1 + rank // 8}", "tp", tensor)]
    groups.append((f"{100_000 + rank % 8}", "dp", data))
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
    """Write one pickle per rank; returns bytes. Without ``shared`` no frame occurs twice."""
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


def write_rings(folder: Path, ranks: int, entries: int, *, apart: int = 0) -> int:
    """Write rings with the content of the pickles, by the real ring writer; returns bytes.

    The records of eight ranks are made one by one; other ranks repeat them in their own groups.
    With ``apart``, ranks are up to this many operations apart, so that the oldest record differs
    from ring to ring.
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
            (f"{100_000 + rank % 8}", "dp", list(range(rank % 8, ranks, 8))),
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
        ahead = rank * 7 % apart if apart else 0
        slots = renumbered(table, identifiers, ahead)
        ring.memory[ring.slot_at(1) : ring.slot_at(1) + len(slots)] = slots
        ring.cells[LAST_RECORD_CELL] = entries
        total += path.stat().st_size
    return total


def recipe(rows: list[dict[str, Any]]) -> tuple[list[tuple[Any, bytes]], bytes]:
    """Values to intern, in order, and slots whose ids are positions in that list.

    Frames come first: stacks hold the positions of their frames, which each ring maps to ids.
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


def renumbered(table: bytes, identifiers: list[int], ahead: int) -> bytes:
    """Slots with this ring's ids of the interned values, starting ``ahead`` operations later."""
    import numpy as np

    from hangscope.ring import layout

    slots = np.frombuffer(table, layout.SLOT).copy()
    ids = np.array(identifiers, np.uint32)
    slots["signature"] = ids[slots["signature"]]
    slots["stack"] = ids[slots["stack"]]
    later = np.roll(slots, -ahead)
    later["record_id"], later["commit"] = slots["record_id"], slots["commit"]
    return later.tobytes()
