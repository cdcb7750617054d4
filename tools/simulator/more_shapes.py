"""Programs in more dimensions, drawn only where several ranks are at fault.

They are kept apart from `tools.simulator.shapes`, from which the cases of earlier seeds are drawn.
"""

from __future__ import annotations

from tools.simulator.program import Writer
from tools.simulator.shapes import LARGE, SHAPES


def _interleaved(w: Writer, steps: int) -> None:
    """Pipeline x data; every rank holds two parts of the model, so that its ends meet in a ring."""
    stages, parts = 4, 2
    data = w.world // stages
    pipelines = [
        w.group("PIPELINE_MODEL_PARALLEL_GROUP", [p * data + d for p in range(stages)])
        for d in range(data)
    ]
    replicas = [
        w.group("DATA_PARALLEL_GROUP", [p * data + d for d in range(data)]) for p in range(stages)
    ]
    micro = stages
    for step in range(steps):
        w.step = step
        for p in range(stages):
            for d in range(data):
                me, group = p * data + d, pipelines[d]
                before = (p - 1) % stages * data + d
                after = (p + 1) % stages * data + d
                for part in range(parts):
                    first, last = p == part == 0, (p, part) == (stages - 1, parts - 1)
                    for _ in range(micro):
                        if first:
                            w.work([me], 0.004, "load_batch", 41)
                        else:
                            w.recv(group, before, me, 64, 20)
                        if not last:
                            w.send(group, me, after, 64, 22, is_async=True)
                for part in reversed(range(parts)):
                    first, last = p == part == 0, (p, part) == (stages - 1, parts - 1)
                    for _ in range(micro):
                        if not last:
                            w.recv(group, after, me, 64, 24)
                        if not first:
                            w.send(group, me, before, 64, 26, is_async=True)
                if data > 1:
                    w.coll(replicas[p], "all_reduce", 900, "reduce_grads", 60, members=[me])
        w.coll(0, "all_reduce", 1, "clip_grad_norm", 64)
        w.wait(range(w.world))


def _four_dimensions(w: Writer, steps: int) -> None:
    """Tensor 2 x context 2 x sharded 2 x replicated; the last has one member on 8 ranks."""
    sizes = (2, 2, 2, w.world // 8)
    names = ("mesh_tp", "mesh_cp", "mesh_dp_shard", "mesh_dp_replicate")
    strides = (1, 2, 4, 8)
    of_dimension = [
        [
            w.group(name, [first + stride * i for i in range(size)])
            for first in range(w.world)
            if first // stride % size == 0
        ]
        for name, size, stride in zip(names, sizes, strides, strict=True)
    ]
    tensor, context, shard, replicate = of_dimension
    everybody = range(w.world)
    for step in range(steps):
        w.step = step
        w.work(everybody, 0.02, "load_batch", 41)
        for layer in range(2):
            for g in shard:
                w.coll(g, "_all_gather_base", 64 + layer, "forward", 50)
            for g in context:
                w.coll(g, "all_to_all", 96, "attention", 53)
            for g in tensor:
                w.coll(g, "all_reduce", 256, "forward", 52)
        for layer in range(2):
            for g in tensor:
                w.coll(g, "all_reduce", 256, "backward", 56)
            for g in shard:
                w.coll(g, "_reduce_scatter_base", 64 + layer, "backward", 57)
            for g in replicate if sizes[3] > 1 else ():
                w.coll(g, "all_reduce", 64 + layer, "backward", 58, is_async=True)
        w.wait(everybody)
        if step % 2:
            w.coll(0, "all_reduce", 1, "clip_grad_norm", 64)


MORE_SHAPES = {**SHAPES, "interleaved pipeline x data": _interleaved, "4D mesh": _four_dimensions}

MORE_LARGE = LARGE | {"interleaved pipeline x data", "4D mesh"}
