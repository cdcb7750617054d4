"""Writes a case as the job's log: the output of the ranks' watchdogs."""

from __future__ import annotations

from math import prod

from tools.simulator.case import Case
from tools.simulator.dialects import (
    pg_id,
    visible,
)
from tools.simulator.execute import Issued

_LOG_NAMES = {
    "all_reduce": "ALLREDUCE", "broadcast": "BROADCAST", "reduce": "REDUCE",
    "_all_gather_base": "_ALLGATHER_BASE", "all_gather": "ALLGATHER", "gather": "GATHER",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE", "all_to_all": "ALLTOALL_BASE",
    "barrier": "ALLREDUCE", "send": "SEND", "recv": "RECV", "coalesced": "COALESCED",
}  # fmt: skip


def job_log(case: Case) -> str:
    """The output of torch 2.6 watchdogs, all ranks in one file, unordered.

    A rank's watchdogs report the oldest unfinished operation of every group that has one. A rank
    with nothing overdue is notified and prints its default group's counters.
    """
    job = case.run.job
    lines = []
    if case.number % 2:  # every second job prints its arguments
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
            label = f"[PG ID {pg_id(case, rank, index)} PG GUID {group.name}({group.desc}) "
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
