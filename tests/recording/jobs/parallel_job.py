"""What trains models: DDP, FSDP, tensor and pipeline parallel, compiled code, checkpoints."""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
from harness import frames_of, recorded, session
from torch import nn

from tests.job_report import Report

report = Report()
dist.init_process_group("gloo")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
report.values["hook"] = type(session().hook).__name__
CPU = torch.device("cpu")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 4))


def batch() -> torch.Tensor:
    return torch.ones(2, 16) * (RANK + 1)


def step(net: nn.Module) -> None:
    net(batch()).mean().backward()


with report.check("DDP, bucketed"):
    from torch.nn.parallel import DistributedDataParallel

    net = DistributedDataParallel(model(), bucket_cap_mb=0.01)
    step(net)
    step(net)
    with recorded() as seen:
        step(net)
    buckets = len(seen.only("all_reduce"))
    assert buckets >= 2, seen.ops
    assert "step" in frames_of(seen.stacks[0]), (
        "a call from the autograd thread shows who led there"
    )

with report.check("DDP, no_sync"):
    with recorded() as seen, net.no_sync():
        step(net)
    assert seen.only("all_reduce") == [], seen.ops

with report.check("DDP, static_graph"):
    static = DistributedDataParallel(model(), static_graph=True)
    for _ in range(3):
        with recorded() as seen:
            step(static)
    assert seen.only("all_reduce"), seen.ops

with report.check("DDP, Join"):
    from torch.distributed.algorithms.join import Join

    joined = DistributedDataParallel(model())
    with recorded() as seen, Join([joined]):
        for _ in range(2 + RANK):
            step(joined)
    assert len(seen.only("all_reduce")) >= 3, seen.ops

with report.check("FSDP2"):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SIZE,))
    net = model()
    for layer in (net[0], net[2], net[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    step(net)
    with recorded() as seen:
        step(net)
    gathers = seen.only("_all_gather_base", "all_gather")
    scatters = seen.only("_reduce_scatter_base", "reduce_scatter", "all_reduce")
    assert len(gathers) >= 3, seen.ops
    assert len(scatters) >= 3, seen.ops

with report.check("FSDP1"):
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(model(), device_id=CPU)
    with recorded() as seen:
        step(net)
    assert seen.only("_all_gather_base", "all_gather"), seen.ops
    assert seen.only("_reduce_scatter_base", "reduce_scatter", "all_reduce"), seen.ops

with report.check("DTensor"):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (SIZE,))
    sharded = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    with recorded() as seen:
        whole = sharded.redistribute(mesh, [Replicate()]).to_local()
        total = sharded.sum().full_tensor()
    assert isinstance(sharded, DTensor)
    assert whole.shape == (4, 2)
    assert float(total) == 28.0
    assert seen.only("_all_gather_base", "all_gather", "all_gather_into_tensor_coalesced")
    assert seen.only("all_reduce", "allreduce_coalesced"), seen.ops

with report.check("tensor parallel"):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    parallelize_module(mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    with recorded() as seen:
        mlp(torch.ones(2, 16)).sum().backward()
    assert seen.only("all_reduce", "allreduce_coalesced"), seen.ops

with report.check("pipeline schedules"):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    part = nn.Linear(16, 16) if RANK == 0 else nn.Linear(16, 4)
    stage = PipelineStage(part, RANK, SIZE, CPU)
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: out.mean())
    with recorded(same_numbers=False) as seen:
        if RANK == 0:
            schedule.step(torch.ones(4, 16))
        else:
            schedule.step(target=torch.ones(4, 4))
    wanted = {"send": 2, "recv": 2}
    for op, count in wanted.items():
        assert len(seen.only(op)) >= count, seen.ops

with report.check("torch.compile, aot_eager"):
    import torch.distributed._functional_collectives as functional

    def reduced(value: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(value * 2, "sum", dist.group.WORLD) + 1

    compiled = torch.compile(reduced, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(4))
    with recorded() as seen:
        out = compiled(torch.ones(4))
    assert out.tolist() == [2.0 * SIZE + 1] * 4
    assert seen.only("all_reduce") == ["all_reduce"], seen.ops

with report.check("torch.compile, inductor"):
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp())
    compiled = torch.compile(reduced, backend="inductor", fullgraph=True)
    compiled(torch.ones(4))
    with recorded() as seen:
        out = compiled(torch.ones(4))
    assert out.tolist() == [2.0 * SIZE + 1] * 4
    assert seen.only("all_reduce") == ["all_reduce"], seen.ops

with report.check("torch.compile of torch.distributed calls"):

    def traced(value: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(value)
        return value + 1

    compiled = torch.compile(traced, backend="aot_eager")
    compiled(torch.ones(4))
    with recorded() as seen:
        out = compiled(torch.ones(4))
    assert out.tolist() == [float(SIZE) + 1] * 4
    assert seen.ops == ["all_reduce"], seen.ops

with report.check("compiled DDP"):
    net = torch.compile(DistributedDataParallel(model()), backend="aot_eager")
    step(net)
    with recorded() as seen:
        step(net)
    assert seen.only("all_reduce"), seen.ops

with report.check("distributed checkpoint, save and load"):
    import torch.distributed.checkpoint as checkpoint

    state = {"weights": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
    folder = os.path.join(os.environ["RESULTS"], "checkpoint")
    with recorded() as seen:
        checkpoint.save(state, checkpoint_id=folder)
    saved = list(seen.ops)
    with recorded() as seen:
        checkpoint.load(state, checkpoint_id=folder)
    assert saved, "saving exchanges objects"
    assert seen.ops, "loading exchanges objects"

with report.check("the recorder still works"):
    with recorded() as seen:
        dist.barrier()
    assert seen.ops == ["barrier"], seen.ops

dist.destroy_process_group()
