"""One case written down as the field writes it: native dumps of many versions, and rings.

Native dialects are files; ``ring`` is the `Trace` that a set of rings gives (built directly: the
ring writer stamps its own times). Every dialect leaves out what its recorder cannot know.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np

from hangscope.trace.model import (
    MEMBER_DTYPE,
    RECORD_DTYPE,
    ExceptionFacts,
    ExitFacts,
    Flag,
    Frame,
    Group,
    RankFacts,
    Signature,
    Source,
    State,
    ThreadStack,
    Trace,
)
from tools.simulator.execute import Issued
from tools.simulator.faults import Case

EPOCH_NS = 1_760_000_000 * 1_000_000_000
Document = dict[str, Any] | list[Any]


def nanoseconds(seconds: float) -> int:
    """Epoch nanoseconds of a virtual moment; 0 for never."""
    return 0 if seconds == inf else EPOCH_NS + int(seconds * 1e9)


@dataclass(frozen=True)
class Dialect:
    """How one collector writes. ``version`` is the dump version; ``hosts`` says whether the
    processes themselves were watched too."""

    name: str
    version: str
    json: bool = False
    only_active: bool = False
    frames: bool = True
    status: bool = True
    hosts: bool = False
    log: bool = False


DIALECTS = {
    d.name: d
    for d in (
        Dialect("ring", "1", hosts=True),
        Dialect("pickle 2.10", "2.10"),
        Dialect("pickle 2.9, no frames", "2.9", frames=False),
        Dialect("pickle 2.9, only active", "2.9", frames=False, only_active=True),
        Dialect("pickle 2.4", "2.4"),
        Dialect("pickle 2.0", "2.0", status=False),
        Dialect("pickle 1.5", "1.5", status=False),
        Dialect("list (torch 2.2)", "none", status=False),
        Dialect("json 2.5", "2.5", json=True, frames=False),
        Dialect("json 2.10, only active", "2.10", json=True, frames=False, only_active=True),
        Dialect("job log", "log", log=True, only_active=True, frames=False),
    )
}


def visible(case: Case, rank: int) -> list[tuple[Issued, bool]]:
    """What a rank had issued when its dump was taken, and whether it had finished."""
    limit = case.at[rank]
    if rank in case.run.died:
        limit = min(limit, case.run.died[rank])
    return [
        (item, item.completed <= limit) for item in case.run.issued[rank] if item.created <= limit
    ]


def _kept(case: Case, seen: list[tuple[Issued, bool]]) -> list[tuple[Issued, bool]]:
    return seen[-case.keep :] if case.keep else seen


# -- native dumps ------------------------------------------------------------------------------


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


def _frames(item: Issued) -> list[dict[str, Any]]:
    name, file, line = item.op.site
    library = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    return [
        {"name": item.op.name or "send", "filename": library, "line": 2800},
        {"name": name, "filename": file, "line": line},
        {"name": "main", "filename": "/srv/job/train.py", "line": 200},
        {"name": "<module>", "filename": "/srv/job/train.py", "line": 240},
    ]


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
        "pg_id": _pg_id(case, item.rank, op.group),
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
        entry["frames"] = _frames(item)
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


def _pg_id(case: Case, rank: int, group: int) -> int:
    """Local number of a group on a rank: how many groups the rank joined before it."""
    mine = [i for i, g in enumerate(case.run.job.groups) if rank in g.ranks]
    return mine.index(group)


def native(case: Case, rank: int, dialect: Dialect) -> Document:
    """The dump of one rank."""
    job = case.run.job
    seen = visible(case, rank)
    numbered = list(enumerate(seen))  # the Flight Recorder counts from 0
    if case.keep:
        numbered = numbered[-case.keep :]
    if dialect.only_active:
        # Members of a batch never show as completed, so they are listed for ever.
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
        if rank in g.ranks and g.name in used  # a communicator is made at its first use
    }
    document: dict[str, Any] = {"version": dialect.version, "pg_config": config, "entries": entries}
    if dialect.status:
        status = {}
        for index, g in enumerate(job.groups):
            if rank not in g.ranks:
                continue
            mine = [(i, done) for i, done in seen if i.op.group == index and i.leg_of is None]
            if not mine:
                continue
            # The native counter does not tell sends from collectives.
            numbers = [
                (i.p2p_seq if i.op.kind != "coll" else i.collective_seq, done) for i, done in mine
            ]
            status[str(_pg_id(case, rank, index))] = {
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
    return document


def write(case: Case, dialect: Dialect, folder: Path) -> None:
    """All dumps of a case below ``folder``; file times are those of the dumps."""
    folder.mkdir(parents=True, exist_ok=True)
    if dialect.log:
        (folder / "job.log").write_text(job_log(case))
        return
    for rank in range(case.run.job.world):
        if rank in case.lost:
            continue
        document = native(case, rank, dialect)
        if dialect.json:
            path = folder / f"_dump_{rank}.json"
            path.write_text(json.dumps(document))
        else:
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(pickle.dumps(document))
        moment = nanoseconds(case.at[rank])
        os.utime(path, ns=(moment, moment))


# -- a job's log -------------------------------------------------------------------------------

_LOG_NAMES = {
    "all_reduce": "ALLREDUCE", "broadcast": "BROADCAST", "reduce": "REDUCE",
    "_all_gather_base": "_ALLGATHER_BASE", "all_gather": "ALLGATHER", "gather": "GATHER",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE", "all_to_all": "ALLTOALL_BASE",
    "barrier": "ALLREDUCE", "send": "SEND", "recv": "RECV", "coalesced": "COALESCED",
}  # fmt: skip


def job_log(case: Case) -> str:
    """What the watchdogs of torch 2.6 print, all ranks in one file, in no order.

    A rank's watchdogs report the oldest unfinished operation of every group that has one; a rank
    with nothing overdue hears of it and tells its default group's counters.
    """
    job = case.run.job
    lines = []
    if case.number % 2:  # every other job prints its arguments
        lines.append(f"[rank0] arguments: Namespace(lr=0.001, world_size={job.world}, seed=1)")
    for rank in range(job.world):
        if rank in case.lost:
            continue
        seen = visible(case, rank)
        head = f"[rank{rank}]:[E1009 08:53:20.{100000000 + rank} ProcessGroupNCCL.cpp"
        unfinished = [i for i, done in seen if not done and i.leg_of is None]
        if unfinished:
            # The watchdog of the oldest one fires first and takes the process down.
            index = unfinished[0].op.group
            group = job.groups[index]
            mine = [(i, d) for i, d in seen if i.op.group == index and i.leg_of is None]
            pending = [i for i, done in mine if not done]
            first, last = pending[0], mine[-1][0]
            numbers = [_number(i) for i, done in mine if done]
            numels = [
                sum(prod(s) for s in sizes)
                for sizes in (first.op.input_sizes, first.op.output_sizes)
            ]
            place = group.ranks.index(rank)
            work = (
                f"WorkNCCL(SeqNum={_number(first)}, OpType={_LOG_NAMES[first.op.name]}, "
                f"NumelIn={numels[0]}, NumelOut={numels[1]}, Timeout(ms)=600000)"
            )
            label = f"[PG ID {_pg_id(case, rank, index)} PG GUID {group.name}({group.desc}) "
            lines.append(
                f"{head}:629] [Rank {place}] Watchdog caught collective operation timeout: {work} "
                "ran for 600041 milliseconds before timing out."
            )
            lines.append(
                f"{head}:2168] {label}Rank {place}]  failure detected by watchdog at work "
                f"sequence id: {_number(first)} PG status: last enqueued work: {_number(last)}, "
                f"last completed work: {max(numbers, default=-1)}"
            )
        else:
            mine = [(i, d) for i, d in seen if i.op.group == 0 and i.op.kind == "coll"]
            issued = max((i.collective_seq for i, _ in mine), default=-1)
            label = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
            lines.append(
                f"{head}:700] {label} Observed flight recorder dump signal from another rank via "
                "TCPStore."
            )
            lines.append(
                f"{head}:701] {label} Received a dump signal due to a collective timeout from "
                f" rank 0 and we will try our best to dump the debug info. Last enqueued NCCL "
                f"work: {issued}, last completed NCCL work: {issued}.This is most likely caused by "
                "incorrect usages of collectives."
            )
    return "\n".join(lines) + "\n"


def _number(item: Issued) -> int:
    return item.collective_seq if item.op.kind == "coll" else item.p2p_seq


# -- rings -------------------------------------------------------------------------------------


def ring_trace(case: Case) -> Trace:
    """What the rings of the case hold, with the processes watched from outside."""
    job = case.run.job
    signatures: dict[Signature, int] = {}
    stacks: dict[tuple[Frame, ...], int] = {}
    rows: list[tuple[Any, ...]] = []
    members: list[tuple[Any, ...]] = []
    lost = frozenset(r for r in case.lost if case.hosts[r].alive)
    facts: dict[int, RankFacts] = {}
    sources = []
    for rank in range(job.world):
        if rank in lost:
            continue
        seen = visible(case, rank)
        history: dict[int, int] = {}
        mine: list[tuple[Any, ...]] = []
        for number, (item, done) in enumerate(seen, start=1):
            op = item.op
            signature = Signature(
                op.name if op.kind != "batch" else "coalesced", op.name,
                "gloo" if job.blocking else "nccl",
                op.input_sizes, op.output_sizes, (op.dtype,) * len(op.input_sizes),
                (op.dtype,) * len(op.output_sizes), op.reduce_op,
            )  # fmt: skip
            frames = tuple(Frame(f["name"], f["filename"], f["line"]) for f in _frames(item))
            flags = Flag(0)
            if op.kind in ("send", "recv"):
                flags |= Flag.P2P
            if item.leg_of is not None:
                flags |= Flag.COALESCED_MEMBER
            if op.kind == "batch":
                flags |= Flag.COALESCED_BATCH
            if op.is_async:
                flags |= Flag.ASYNC
            if op.kind == "coll":
                rank_invariant = (op.name, op.dtype, op.reduce_op, op.root) + (
                    () if op.name in ("all_to_all", "gather", "scatter") else (op.input_sizes,)
                )
                history[op.group] = (
                    hash((history.get(op.group, 0), rank_invariant)) & 0x7FFFFFFFFFFFFFFF
                ) or 1
            mine.append((
                rank, op.group, item.collective_seq, item.p2p_seq, item.op_id, number,
                signatures.setdefault(signature, len(signatures)),
                stacks.setdefault(frames, len(stacks)),
                op.peer, op.root, nanoseconds(item.created), 0,
                nanoseconds(item.completed) if done and item.leg_of is None else 0,
                history.get(op.group, 0) if op.kind == "coll" else 0, 0, 0,
                State.COMPLETED if done and item.leg_of is None else State.SCHEDULED, flags,
            ))  # fmt: skip
        for index, g in enumerate(job.groups):
            if rank not in g.ranks:
                continue
            here = [(i, done) for i, done in seen if i.op.group == index and i.op.kind == "coll"]
            unfinished = [i.collective_seq for i, done in here if not done]
            top = max((i.collective_seq for i, _ in here), default=0)
            halves = [i for i, _ in seen if i.op.group == index and i.op.kind != "coll"]
            members.append((
                rank, index, top, -1, min(unfinished) - 1 if unfinished else top,
                max((i.p2p_seq for i in halves), default=0), history.get(index, 0),
                nanoseconds(here[-1][0].created) if here else 0, 0,
            ))  # fmt: skip
        kept = mine[-case.keep :] if case.keep else mine
        rows += kept
        facts[rank] = _facts(case, rank, kept[0][5] if kept else 0)
        sources.append(Source(f"rank_{rank}.ring", "hangscope-ring", "1", rank, len(kept)))
    records = np.array(rows, RECORD_DTYPE) if rows else np.zeros(0, RECORD_DTYPE)
    live = any(f.alive for f in facts.values())
    return Trace(
        records,
        np.array(members, MEMBER_DTYPE),
        tuple(Group(g.name, g.desc, g.ranks, backend="gloo") for g in job.groups),
        tuple(signatures),
        tuple(stacks),
        facts,
        sources=tuple(sources),
        world_size=job.world,
        live=live,
        looks=2 if live else 1,
        timeout_s=120.0,
        observed_ns=nanoseconds(max(case.at)),
    )


def _facts(case: Case, rank: int, oldest: int) -> RankFacts:
    host = case.hosts[rank]
    at = nanoseconds(host.exit_at)
    exit_ = None
    if host.exit:
        kind = "unknown" if host.exit == "signal" and rank % 2 else host.exit
        exit_ = ExitFacts(
            kind,
            code={"clean": 0, "code": 3, "exception": 1}.get(kind),
            signal=host.signal if kind == "signal" or host.by_launcher else None,
            at_ns=at,
            by_launcher=host.by_launcher,
        )
    exception = None
    if host.exception:
        name, _, message = host.exception.partition(": ")
        exception = ExceptionFacts(
            f"builtins.{name}", message, (Frame("load_batch", "/srv/job/data.py", 44),), at
        )
    threads: tuple[ThreadStack, ...] = ()
    if host.alive and host.function:
        blocked = case.run.blocked_on[rank]
        if blocked is not None:
            top = tuple(Frame(f["name"], f["filename"], f["line"]) for f in _frames(blocked))
        else:
            top = (
                Frame(host.function, "/srv/job/data.py", 41),
                Frame("<module>", "/srv/job/train.py", 240),
            )
        threads = (ThreadStack("MainThread", True, top, nanoseconds(case.at[rank])),)
    observed = nanoseconds(case.at[rank]) if host.alive else at
    state = {"gil-held": "sleeping", "gone": "gone"}.get(host.state, host.state)
    return RankFacts(
        rank,
        host="node0",
        pid=1000 + rank,
        world_size=case.run.job.world,
        alive=host.alive,
        process_state=state,
        heartbeat_ns=observed,
        gil_blocked=host.state == "gil-held" if host.alive else None,
        initialized=True,
        finalized=host.finalized,
        exit=exit_,
        exception=exception,
        threads=threads,
        observed_ns=observed,
        oldest_record_id=oldest,
    )


Writer = Callable[[Case, Dialect, Path], None]
