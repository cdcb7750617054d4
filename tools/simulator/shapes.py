"""The healthy programs of virtual jobs, one for each way to split a model over ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tools.simulator.program import Job, Writer

Shape = Callable[[Writer, int], None]
"""Writes so many steps of a program."""


def _ddp(w: Writer, steps: int) -> None:
    everybody = range(w.world)
    extra = w.group("metrics", list(everybody))
    for step in range(steps):
        w.step = step
        w.work(everybody, 0.02, "load_batch", 41)
        if step == 0:
            w.coll(0, "broadcast", 512, "sync_buffers", 30, root=0)
        for bucket in range(3):
            w.work(everybody, 0.004, "backward", 60)
            w.coll(0, "all_reduce", 1000 + 500 * bucket, "backward", 61, is_async=True)
        w.wait(everybody)
        if step % 2:
            w.coll(extra, "all_reduce", 1, "log_metrics", 71)
            if step % 4 == 1:
                w.coll(extra, "gather", 5, "log_metrics", 72, root=0)
        if step % 5 == 4:
            w.coll(0, "barrier", 1, "checkpoint", 80)


def _fsdp(w: Writer, steps: int) -> None:
    everybody = range(w.world)
    for step in range(steps):
        w.step = step
        w.work(everybody, 0.02, "load_batch", 41)
        for layer in range(3):
            w.coll(0, "_all_gather_base", 100 + layer, "forward", 50, dtype="BFloat16")
            w.work(everybody, 0.003, "forward", 51)
        for layer in reversed(range(3)):
            w.coll(0, "_all_gather_base", 100 + layer, "backward", 55, dtype="BFloat16")
            w.coll(0, "_reduce_scatter_base", 100 + layer, "backward", 56, dtype="Float")
        w.coll(0, "all_reduce", 1, "clip_grad_norm", 64)
        if step % 3 == 2:
            w.wait(everybody)


def _hsdp(w: Writer, steps: int) -> None:
    shard = 4 if w.world % 4 == 0 else 2
    shards = [w.group("mesh_shard", list(range(i, i + shard))) for i in range(0, w.world, shard)]
    replicas = [w.group("mesh_replicate", list(range(i, w.world, shard))) for i in range(shard)]
    everybody = range(w.world)
    for step in range(steps):
        w.step = step
        w.work(everybody, 0.02, "load_batch", 41)
        for layer in range(2):
            for g in shards:
                w.coll(g, "_all_gather_base", 64 + layer, "forward", 50)
        for layer in range(2):
            for g in shards:
                w.coll(g, "_reduce_scatter_base", 64 + layer, "backward", 56)
            for g in replicas:
                w.coll(g, "all_reduce", 64 + layer, "backward", 57, is_async=True)
        w.wait(everybody)
        w.coll(0, "all_reduce", 1, "clip_grad_norm", 64)


def _tp_dp(w: Writer, steps: int) -> None:
    tensor = 4 if w.world % 8 == 0 else 2
    tps = [
        w.group("TENSOR_MODEL_PARALLEL_GROUP", list(range(i, i + tensor)))
        for i in range(0, w.world, tensor)
    ]
    dps = [w.group("DATA_PARALLEL_GROUP", list(range(i, w.world, tensor))) for i in range(tensor)]
    everybody = range(w.world)
    for step in range(steps):
        w.step = step
        w.work(everybody, 0.02, "load_batch", 41)
        for g in tps:
            w.coll(g, "broadcast", 32, "broadcast_data", 44, root=w.groups[g].ranks[0])
        for _ in range(2):
            w.work(everybody, 0.003, "forward", 51)
            for g in tps:
                w.coll(g, "all_reduce", 256, "forward", 52)
        for _ in range(2):
            for g in tps:
                w.coll(g, "all_reduce", 256, "backward", 56)
            for g in dps:
                w.coll(g, "all_reduce", 128, "backward", 58, is_async=True)
        w.wait(everybody)


def _tp_pp_dp(w: Writer, steps: int) -> None:
    """Tensor 2 x pipeline (2 or 4) x data, one-forward-one-backward."""
    tensor = 2
    stages = 4 if w.world >= 16 else 2
    data = w.world // (tensor * stages)

    def rank(t: int, d: int, p: int) -> int:
        return p * tensor * data + d * tensor + t

    tps = {
        (d, p): w.group("TENSOR_MODEL_PARALLEL_GROUP", [rank(t, d, p) for t in range(tensor)])
        for d in range(data)
        for p in range(stages)
    }
    pps = {
        (t, d): w.group("PIPELINE_MODEL_PARALLEL_GROUP", [rank(t, d, p) for p in range(stages)])
        for t in range(tensor)
        for d in range(data)
    }
    dps = {
        (t, p): w.group("DATA_PARALLEL_GROUP", [rank(t, d, p) for d in range(data)])
        for t in range(tensor)
        for p in range(stages)
    }
    micro = stages + 1
    for step in range(steps):
        w.step = step
        for p in range(stages):
            warm = min(stages - p - 1, micro)
            schedule = ["F"] * warm
            for _ in range(micro - warm):
                schedule += ["F", "B"]
            schedule += ["B"] * warm
            for t in range(tensor):
                for d in range(data):
                    me = rank(t, d, p)
                    g = pps[t, d]
                    for what in schedule:
                        if what == "F":
                            if p == 0:
                                w.work([me], 0.004, "load_batch", 41)
                            else:
                                w.recv(g, rank(t, d, p - 1), me, 64, 20)
                            w.coll(tps[d, p], "all_reduce", 256, "forward", 52, members=[me])
                            if p < stages - 1:
                                w.send(g, me, rank(t, d, p + 1), 64, 22, is_async=True)
                        else:
                            if p < stages - 1:
                                w.recv(g, rank(t, d, p + 1), me, 64, 24)
                            w.coll(tps[d, p], "all_reduce", 300, "backward", 56, members=[me])
                            if p > 0:
                                w.send(g, me, rank(t, d, p - 1), 64, 26, is_async=True)
                    if data > 1:
                        w.coll(dps[t, p], "all_reduce", 900, "reduce_grads", 60, members=[me])
        if step % 2:
            w.coll(0, "all_reduce", 1, "clip_grad_norm", 64)
        w.wait(range(w.world))


def _moe(w: Writer, steps: int) -> None:
    experts = 4 if w.world % 4 == 0 else 2
    eps = [
        w.group("EXPERT_MODEL_PARALLEL_GROUP", list(range(i, i + experts)))
        for i in range(0, w.world, experts)
    ]
    dps = [w.group("DATA_PARALLEL_GROUP", list(range(i, w.world, experts))) for i in range(experts)]
    everybody = range(w.world)
    for step in range(steps):
        w.step = step
        w.work(everybody, 0.02, "load_batch", 41)
        for _ in range(2):
            for g in eps:
                w.coll(g, "all_to_all", 400, "dispatch", 47, uneven=True)
                w.coll(g, "all_to_all", 400, "combine", 48, uneven=True)
        for g in dps:
            w.coll(g, "all_reduce", 128, "backward", 58, is_async=True)
        w.wait(everybody)
        if step % 3 == 2:
            w.coll(0, "all_gather", 6, "log_metrics", 72)


def _context(w: Writer, steps: int) -> None:
    """Ring attention: batched exchanges with both neighbours, then data parallel."""
    ring = 4 if w.world % 4 == 0 else 2
    cps = [
        w.group("CONTEXT_PARALLEL_GROUP", list(range(i, i + ring))) for i in range(0, w.world, ring)
    ]
    everybody = range(w.world)
    for step in range(steps):
        w.step = step
        w.work(everybody, 0.02, "load_batch", 41)
        for _ in range(2):
            for g in cps:
                ranks = w.groups[g].ranks
                for i, me in enumerate(ranks):
                    right, left = ranks[(i + 1) % ring], ranks[(i - 1) % ring]
                    w.batch(
                        me,
                        g,
                        [w.half("send", g, right, 50, 77), w.half("recv", g, left, 50, 77)],
                    )
        w.coll(0, "all_reduce", 800, "backward", 58, is_async=True)
        w.wait(everybody)


def _tp_ep_dp(w: Writer, steps: int) -> None:
    """Tensor 2 x data, with experts spread over part of the data-parallel ranks."""
    tensor, experts = 2, 4 if w.world >= 16 else 2
    data = w.world // tensor
    everybody = range(w.world)
    tps = [w.group("TENSOR_MODEL_PARALLEL_GROUP", [i, i + 1]) for i in range(0, w.world, tensor)]
    dps = [w.group("DATA_PARALLEL_GROUP", list(range(t, w.world, tensor))) for t in range(tensor)]
    eps = [
        w.group("EXPERT_MODEL_PARALLEL_GROUP", [t + tensor * (e + i) for i in range(experts)])
        for t in range(tensor)
        for e in range(0, data, experts)
    ]
    edps = [
        w.group("EXPERT_DATA_PARALLEL_GROUP", list(range(i, w.world, tensor * experts)))
        for i in range(tensor * experts)
        if w.world > tensor * experts
    ]
    for step in range(steps):
        w.step = step
        w.work(everybody, 0.02, "load_batch", 41)
        for g in tps:
            w.coll(g, "all_reduce", 256, "forward", 52)
        for g in eps:
            w.coll(g, "all_to_all", 400, "dispatch", 47, uneven=True)
            w.coll(g, "all_to_all", 400, "combine", 48, uneven=True)
        for g in tps:
            w.coll(g, "all_reduce", 256, "backward", 56)
        for g in edps:
            w.coll(g, "all_reduce", 77, "backward", 57, is_async=True)
        for g in dps:
            w.coll(g, "_reduce_scatter_base", 128, "backward", 58)
            w.coll(g, "_all_gather_base", 128, "update", 59)
        w.wait(everybody)


def _collector(w: Writer, steps: int) -> None:
    """Rank 0 of every four collects results from whoever is ready, then data parallel."""
    size = 4
    groups = [w.group("workers", list(range(i, i + size))) for i in range(0, w.world, size)]
    everybody = range(w.world)
    for step in range(steps):
        w.step = step
        w.work(everybody, 0.02, "load_batch", 41)
        for g in groups:
            first, *others = w.groups[g].ranks
            for rank in others:
                w.work([rank], 0.004, "roll_out", 33)
                w.send(g, rank, first, 64, 36, is_async=False)
            for _ in others:
                w.recv(g, -1, first, 64, 38)
            w.coll(g, "broadcast", 64, "share", 39, root=first)
        w.coll(0, "all_reduce", 800, "backward", 58, is_async=True)
        w.wait(everybody)


SHAPES: dict[str, Shape] = {
    "ddp": _ddp,
    "fsdp": _fsdp,
    "hybrid-shard": _hsdp,
    "tensor x data": _tp_dp,
    "tensor x pipeline x data": _tp_pp_dp,
    "experts": _moe,
    "context": _context,
    "tensor x experts x data": _tp_ep_dp,
    "collector": _collector,
}


LARGE = frozenset({"tensor x pipeline x data", "tensor x experts x data"})
"""Shapes that need at least 8 ranks."""


def write(
    shape: str,
    world: int,
    steps: int,
    blocking: bool,
    rng: random.Random,
    shapes: Mapping[str, Shape] = SHAPES,
) -> Job:
    """The healthy programs of one job; ``shapes`` are those to find its shape in."""
    writer = Writer(world, rng)
    shapes[shape](writer, steps)
    return writer.job(shape, blocking)
