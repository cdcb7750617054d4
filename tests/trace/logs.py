"""Helpers for tests of job logs: text in, trace out."""

from __future__ import annotations

import io
from collections.abc import Sequence

from hangscope.trace.job_log.read import read_job_log
from hangscope.trace.merging.merge import merge
from hangscope.trace.model import Claim, Trace


def trace_of(text: str) -> Trace:
    """The trace of one log."""
    return merge(read_job_log(io.BytesIO(text.encode()), path="job.log", year=2025))


def overdue(trace: Trace) -> list[tuple[int, str, str, int]]:
    """(rank, group name, op, sequence number) of every operation that timed out."""
    found = []
    for row in trace.records:
        seq = row["collective_seq"] if row["collective_seq"] >= 0 else row["p2p_seq"]
        group = trace.groups[row["group"]].name
        found.append((int(row["rank"]), group, trace.signatures[row["signature"]].op, int(seq)))
    return sorted(found)


def counters(trace: Trace) -> dict[tuple[int, str], tuple[int, int]]:
    """(rank, group name) -> (enqueued, completed)."""
    return {
        (int(m["rank"]), trace.groups[m["group"]].name): (int(m["enqueued"]), int(m["completed"]))
        for m in trace.members
    }


def claims(trace: Trace, kind: str) -> Sequence[Claim]:
    """The claims of one kind."""
    return [c for c in trace.claims if c.kind == kind]


RAN = "ran for 1800123 milliseconds before timing out."
"""How a line of a watchdog ends that tells a timeout."""
WORK = "WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={n}, NumelOut={n}, Timeout(ms)=600000)"


def timeout(rank: int, seq: int, op: str = "ALLREDUCE", n: int = 4096) -> str:
    """The two lines that a watchdog of torch 2.6 prints."""
    work = WORK.format(seq=seq, op=op, n=n)
    head = f"[rank{rank}]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp"
    return (
        f"{head}:629] [Rank {rank}] Watchdog caught collective operation timeout: {work} "
        f"ran for 600030 milliseconds before timing out.\n"
        f"{head}:2168] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog "
        f"at work sequence id: {seq} PG status: last enqueued work: {seq}, last completed work: "
        f"{seq - 1}\n"
    )
