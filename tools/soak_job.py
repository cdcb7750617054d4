"""One rank of a soak job, and the plan that it follows.

The `Plan` determines everything a job does, and so what must be recorded.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import resource
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPS = ("all_reduce", "broadcast", "all_gather", "_all_gather_base", "reduce", "barrier")
SIZES = tuple(range(8, 4104, 8))
"""Numbers of elements; few enough that all their signatures fit into the ring."""
GROUPS_PER_THREAD = 3
SETTLE_S = 5.0
"""How long a rank waits at its end for sockets and threads to be closed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One job, completely determined by these numbers."""

    seed: int
    size: int
    threads: int
    operations: int
    """Per thread."""
    kind: str
    """``clean``, ``restart`` (all groups are destroyed and created again) or ``kill``."""
    generations: int = 1


def members_of(plan: Plan, generation: int, thread: int, group: int) -> list[int]:
    """The ranks of a group, at least two."""
    rng = random.Random(f"{plan.seed}/{generation}/{thread}/{group}/members")
    return sorted(rng.sample(range(plan.size), rng.randint(2, plan.size)))


def steps_of(plan: Plan, generation: int, thread: int) -> list[tuple[int, str, int]]:
    """A thread's steps, the same on every rank: (group, operation, number of elements)."""
    rng = random.Random(f"{plan.seed}/{generation}/{thread}/steps")
    return [
        (rng.randrange(GROUPS_PER_THREAD), rng.choice(OPS), rng.choice(SIZES))
        for _ in range(plan.operations)
    ]


def rank_main(plan: Plan, store: str, results: Path) -> None:
    """One rank of one job."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    digest = hashlib.sha256()
    first: dict[str, float] = {}
    for generation in range(plan.generations):
        dist.init_process_group(
            "gloo", init_method=f"file://{store}.{generation}", rank=rank, world_size=plan.size
        )
        groups = {
            (thread, group): dist.new_group(
                members_of(plan, generation, thread, group),
                group_desc=f"{generation}.{thread}.{group}",
            )
            for thread in range(plan.threads)
            for group in range(GROUPS_PER_THREAD)
        }
        sums: dict[int, bytes] = {}

        def work(
            thread: int, generation: int = generation, groups: Any = groups, sums: Any = sums
        ) -> None:
            sums[thread] = _thread_main(plan, generation, thread, groups, rank)

        workers = [threading.Thread(target=work, args=(t,)) for t in range(plan.threads)]
        if generation == 0:
            dist.barrier()
            first = usage()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for thread in sorted(sums):
            digest.update(sums[thread])
        dist.barrier()
        dist.destroy_process_group()
        del groups
    last = settled(first)
    out = {"digest": digest.hexdigest(), "first": first, "last": last}
    (results / f"rank{rank}.json").write_text(json.dumps(out))


def _thread_main(plan: Plan, generation: int, thread: int, groups: Any, rank: int) -> bytes:
    import torch
    import torch.distributed as dist

    digest = hashlib.sha256()
    for index, (group, op, numel) in enumerate(steps_of(plan, generation, thread)):
        members = members_of(plan, generation, thread, group)
        if rank not in members:
            continue
        handle = groups[thread, group]
        value = torch.full((numel,), float(rank + index % 97))
        is_async = index % 3 == 0
        work: Any = None
        outputs = [value]
        if op == "all_reduce":
            work = dist.all_reduce(value, group=handle, async_op=is_async)
        elif op == "broadcast":
            work = dist.broadcast(value, members[0], group=handle, async_op=is_async)
        elif op == "reduce":
            work = dist.reduce(value, members[-1], group=handle, async_op=is_async)
            outputs = [value] if rank == members[-1] else []
        elif op == "all_gather":
            outputs = [torch.empty(numel) for _ in members]
            work = dist.all_gather(outputs, value, group=handle, async_op=is_async)
        elif op == "_all_gather_base":
            outputs = [torch.empty(numel * len(members))]
            work = dist.all_gather_into_tensor(outputs[0], value, group=handle, async_op=is_async)
        else:
            work = dist.barrier(group=handle, async_op=is_async)
        if work is not None:
            work.wait()
        for output in outputs:
            digest.update(output.numpy().tobytes())
    return digest.digest()


def usage() -> dict[str, float]:
    """Resident memory (MiB), threads and open descriptors of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_mib": pages * resource.getpagesize() / 2**20,
        "threads": float(len(os.listdir("/proc/self/task"))),
        "descriptors": float(len(os.listdir("/proc/self/fd"))),
    }


def settled(first: dict[str, float]) -> dict[str, float]:
    """`usage` after everything has been closed."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        gc.collect()
        last = usage()
        late = any(last[what] > first[what] for what in ("threads", "descriptors"))
        if not late or time.monotonic() > deadline_s:
            return last
        time.sleep(0.1)
