"""Converts a case to the `Trace` that its rings would give.

Built directly, because the ring writer uses the real time.
"""

from __future__ import annotations

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
from tools.simulator.case import Case
from tools.simulator.dialects import (
    frames_of,
    nanoseconds,
    visible,
)


def ring_trace(case: Case) -> Trace:
    """The content of the case's rings, with observations of the processes from outside."""
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
            frames = tuple(Frame(f["name"], f["filename"], f["line"]) for f in frames_of(item))
            flags = Flag(0)
            if op.kind in ("send", "recv", "batch"):
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
                nanoseconds(here[-1][0].created) if here else 0, 0, 0,
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
            top = tuple(Frame(f["name"], f["filename"], f["line"]) for f in frames_of(blocked))
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
        heartbeat_ns=nanoseconds(host.beat_at) if host.beat_at else observed,
        gil_blocked=host.state == "gil-held" if host.alive else None,
        initialized=True,
        finalized=host.finalized,
        exit=exit_,
        exception=exception,
        threads=threads,
        observed_ns=observed,
        oldest_record_id=oldest,
    )
