"""Operations of all kinds in a fixed order; what is on record must not depend on the hot path."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from hangscope.recording.api import current_session
from hangscope.trace.rings.read import read_ring
from tests.job_report import raises

TIMES = {"created_ns", "started_ns", "completed_ns", "thread"}

dist.init_process_group("gloo")
session = current_session()
assert session is not None
RANK = dist.get_rank()
PEER = 1 - RANK


def ones(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*sizes, dtype=dtype)


def scatter(group: dist.ProcessGroup | None) -> dist.Work:
    return dist.reduce_scatter_tensor(ones(3), ones(6), group=group, async_op=True)


def issue(group: dist.ProcessGroup | None = None) -> None:
    """Every operation twice: the second one meets what the first has left in the caches."""
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.SUM):
        dist.all_reduce(ones(4), op=op, group=group)
    for dtype in (torch.float32, torch.int64, torch.float32):
        dist.all_reduce(ones(2, 3, dtype=dtype), group=group)
    for root in (0, 1, 0):
        dist.broadcast(ones(5), root, group=group)
        dist.reduce(ones(5), root, group=group)
    for _ in range(2):
        dist.all_gather([ones(3), ones(3)], ones(3), group=group)
        dist.all_gather_into_tensor(ones(6), ones(3), group=group)
        dist.reduce_scatter_tensor(ones(3), ones(6), group=group)
        dist.gather(ones(2), [ones(2), ones(2)] if RANK == 0 else None, group=group)
        dist.scatter(ones(2), [ones(2), ones(2)] if RANK == 0 else None, group=group)
        dist.all_to_all_single(ones(4), ones(4), group=group)
        splits = [1, 3] if RANK == 0 else [3, 1]
        dist.all_to_all_single(ones(4), ones(4), splits, splits, group=group)
        dist.barrier(group=group)
        dist.monitored_barrier(group=group)
        dist.all_gather_object([None, None], {"rank": RANK}, group=group)
        for count in (5, 40):
            works = [dist.all_reduce(ones(1), group=group, async_op=True) for _ in range(count)]
            for work in reversed(works) if count == 5 else works:
                work.wait()
        dist.all_reduce(ones(1), group=group, async_op=True)  # nobody waits for this one
        for count in (1, 5, 40):  # Gloo's tell their end only to who waits
            works = [scatter(group) for _ in range(count)]
            if count == 5:
                session.recorder.catch_up()  # as the watcher does between two calls of the job
            for work in reversed(works):
                work.wait()
        scatter(group)
        if RANK == 0:
            dist.send(ones(7), PEER, tag=3, group=group)
            dist.isend(ones(7), PEER, group=group).wait()
        else:
            dist.recv(ones(7), PEER, tag=3, group=group)
            dist.irecv(ones(7), PEER, group=group).wait()
        halves = [dist.P2POp(dist.isend, ones(2), PEER, group),
                  dist.P2POp(dist.irecv, ones(2), PEER, group)]  # fmt: skip
        for work in dist.batch_isend_irecv(halves):
            work.wait()
        with dist.distributed_c10d._coalescing_manager(group=group):
            dist.all_reduce(ones(3), group=group)
            dist.all_reduce(ones(4), group=group)
        raises((RuntimeError, ValueError), dist.broadcast, ones(1), 9, group=group)
        try:
            raise KeyError("handled")
        except KeyError:
            dist.all_reduce(ones(8), group=group)


issue()
issue(dist.new_group([0, 1], group_desc="pair"))
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
for _ in range(2):
    net(ones(1, 4)).sum().backward()
torch.manual_seed(0)
session.recorder.catch_up()
dist.barrier()
session.recorder.catch_up()
fragment = read_ring(session.ring.path)
names = [name for name in fragment.records.dtype.names if name not in TIMES]
rows = [
    {name: row[name].item() for name in names}
    | {"signature": repr(fragment.signatures[row["signature"]]),
       "stack": [str(frame) for frame in fragment.stacks[row["stack"]]],
       "group": fragment.groups[row["group"]].ranks}
    for row in fragment.records
]  # fmt: skip
report = {"hook": type(session.hook).__name__, "rows": rows}
Path(os.environ["RESULTS"], f"equal_{RANK}.json").write_text(json.dumps(report, default=str))
dist.destroy_process_group()
sys.stdout.flush()
