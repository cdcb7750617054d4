"""Writes a case as real-world files: dumps of many versions of torch's own recorder, and logs.

Every dialect omits what its recorder cannot know.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

from tools.simulator.case import Case
from tools.simulator.dialects import (
    Dialect,
    frames_of,
    nanoseconds,
    pg_id,
    visible,
)
from tools.simulator.execute import Issued
from tools.simulator.job_logs import job_log

Document = dict[str, Any] | list[Any]


def _kept(case: Case, seen: list[tuple[Issued, bool]]) -> list[tuple[Issued, bool]]:
    return seen[-case.keep :] if case.keep else seen


def _native_name(case: Case, item: Issued, backend: str = "nccl") -> str:
    op = item.op
    ranks = case.run.job.groups[op.group].ranks
    if op.kind == "send":
        return f"{backend}:send {ranks.index(item.rank)}->{ranks.index(op.peer)}"
    if op.kind == "recv":
        source = ranks.index(op.peer) if op.peer >= 0 else "?"
        return f"{backend}:recv {ranks.index(item.rank)}<-{source}"
    if op.name == "barrier":
        return f"{backend}:all_reduce_barrier"
    return f"{backend}:{op.name}"


def _entry(
    case: Case, item: Issued, done: bool, record_id: int, dialect: Dialect
) -> dict[str, Any]:
    op = item.op
    group = case.run.job.groups[op.group]
    is_p2p = op.kind in ("send", "recv")
    leg = item.leg_of is not None
    sizes = op.kind != "batch"
    version = dialect.version
    entry: dict[str, Any] = {
        "record_id": record_id,
        "pg_id": pg_id(case, item.rank, op.group),
        "process_group": (group.name, group.desc),
        "profiling_name": _native_name(case, item),
        "op_id": item.op_id,
        "time_created_ns": nanoseconds(item.created),
        "duration_ms": None,
        "input_sizes": [list(s) for s in op.input_sizes] if sizes else [],
        "output_sizes": [list(s) for s in op.output_sizes] if sizes else [],
        "state": "completed" if done and not leg else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": (nanoseconds(item.completed) if done and not leg else None),
        "retired": done and not leg,
        "timeout_ms": 600000,
        "is_p2p": is_p2p,
        "collective_seq_id": item.collective_seq,
        "p2p_seq_id": item.p2p_seq,
        "input_dtypes": [op.dtype] * len(op.input_sizes) if sizes else [],
        "output_dtypes": [op.dtype] * len(op.output_sizes) if sizes else [],
    }
    if dialect.frames:
        entry["frames"] = frames_of(item)
    if version in ("none", "1.5"):
        for name in ("collective_seq_id", "p2p_seq_id", "is_p2p", "input_dtypes", "output_dtypes",
                     "timeout_ms"):  # fmt: skip
            del entry[name]
        entry["seq_id"] = item.p2p_seq + item.collective_seq  # one counter for everything
    if version == "none":
        del entry["op_id"]
        del entry["pg_id"]
    if version == "2.10":
        entry["thread_id"] = "140001"
        entry["thread_name"] = "pt_main"
    if dialect.json:
        entry["process_group"] = list(entry["process_group"])
        for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[name] = entry[name] or 0
    return entry


def native(case: Case, rank: int, dialect: Dialect) -> Document:
    """The dump of one rank."""
    job = case.run.job
    seen = visible(case, rank)
    numbered = list(enumerate(seen))  # Flight Recorder ids start at 0
    if case.keep:
        numbered = numbered[-case.keep :]
    if dialect.only_active:
        # Members of a batch are never marked as completed, so they stay listed for ever.
        numbered = [
            (i, (item, done)) for i, (item, done) in numbered if not done or item.leg_of is not None
        ]
    entries = [_entry(case, item, done, i, dialect) for i, (item, done) in numbered]
    if dialect.version == "none":
        return entries
    used = {job.groups[item.op.group].name for item, _ in seen}
    config = {
        g.name: {"name": g.name, "desc": g.desc, "ranks": str(list(g.ranks))}
        for g in job.groups
        if rank in g.ranks and g.name in used  # a communicator is created at its first use
    }
    document: dict[str, Any] = {"version": dialect.version, "pg_config": config}
    if dialect.status:
        status = {}
        for index, g in enumerate(job.groups):
            if rank not in g.ranks:
                continue
            mine = [(i, done) for i, done in seen if i.op.group == index and i.leg_of is None]
            if not mine:
                continue
            # The native counter does not distinguish sends from collectives.
            numbers = [
                (i.p2p_seq if i.op.kind != "coll" else i.collective_seq, done) for i, done in mine
            ]
            status[str(pg_id(case, rank, index))] = {
                "last_enqueued_collective": numbers[-1][0],
                "last_started_collective": -1,
                "last_completed_collective": max((n for n, done in numbers if done), default=-1)
                if all(i.op.kind == "coll" for i, _ in mine)
                else next((n for n, done in reversed(numbers) if done), -1),
            }
        document["pg_status"] = status
    if dialect.version == "2.10":
        document["comm_lib_version"] = "2.27.5"
    elif dialect.version in ("2.9", "2.5"):
        document["nccl_version"] = "2.26.2"
    document["entries"] = entries  # torch writes them last
    return document


def write(case: Case, dialect: Dialect, folder: Path) -> None:
    """Write all dumps of a case below ``folder``; mtimes are those of the dumps."""
    folder.mkdir(parents=True, exist_ok=True)
    if dialect.log:
        (folder / "job.log").write_text(job_log(case))
        return
    for rank in range(case.run.job.world):
        if rank in case.lost:
            continue
        document = native(case, rank, dialect)
        write_dump(folder, rank, document, as_json=dialect.json, at_ns=nanoseconds(case.at[rank]))


def write_dump(folder: Path, rank: int, document: Document, *, as_json: bool, at_ns: int) -> None:
    """Write one dump, dated as if the recorder had written it at ``at_ns``."""
    if as_json:
        path = folder / f"_dump_{rank}.json"
        path.write_text(json.dumps(document))
    else:
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(document, protocol=2))  # as torch does
    os.utime(path, ns=(at_ns, at_ns))
