"""Warm-up in a real job of four ranks: communicators, replicas, training steps."""

import copy
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hangscope
from hangscope import Disagreement, Rewindable, SyncError, WarmupError
from hangscope.toolkit.warmup.replicas import compare_replicas
from tests.job_report import Report, raises

report = Report()
hangscope.init_distributed(init_timeout=60, timeout=60)
rank = dist.get_rank()
world = dist.group.WORLD
rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
doomed = dist.new_group([2, 3])
row, column = rows[rank // 2], columns[rank % 2]


def same_everywhere(tensors) -> bool:
    from hangscope.toolkit.tensors import checksum

    sums: list = [None] * 4
    dist.all_gather_object(sums, checksum(tensors))
    return len(set(sums)) == 1


with report.check("every_group"):
    warmed = hangscope.warmup_communicators(timeout=30)
    assert warmed[0].ranks == (0, 1, 2, 3)
    assert len(warmed) == (4 if rank in (2, 3) else 3), warmed
    assert {w.ranks for w in warmed} >= {tuple(sorted((rank, rank ^ 1))), (rank % 2, rank % 2 + 2)}

with report.check("order_is_identical_whatever_order_is_given"):
    given = [row, column, world] if rank % 2 else [world, column, row]
    warmed = hangscope.warmup_communicators(given, timeout=30)
    names = [None] * 4
    dist.all_gather_object(names, [w.ranks for w in warmed])
    assert len(warmed) == 3
    assert all(n[0] == (0, 1, 2, 3) for n in names), names

with report.check("values_are_reset_between_iterations"):
    # With 40 in-place sums of ones over four ranks, 4**40 would long have left float32's integers.
    assert hangscope.warmup_communicators([world], iterations=40, timeout=30)[0].iterations == 40

with report.check("member_that_does_not_come_is_named"):
    if rank != 3:
        error = raises(WarmupError, hangscope.warmup_communicators, [world], timeout=2)
        assert error.failing == [3], error.failing
        assert "default" in str(error), error
    else:
        time.sleep(3)
hangscope.barrier(30)

with report.check("communicator_that_does_not_answer_is_named"):
    real = dist.all_reduce
    if rank == 2:
        dist.all_reduce = lambda *a, **k: time.sleep(4)
    error = None
    if rank in (2, 3):
        error = raises(WarmupError, hangscope.warmup_communicators, [doomed], timeout=1.5)
    dist.all_reduce = real
    if error is not None:
        assert 2 in error.failing, error.failing
        assert "did not complete" in str(error), error
        assert error.ranks == [2, 3]
hangscope.barrier(30)

with report.check("different_iterations_are_refused_by_all"):
    error = raises(
        WarmupError, hangscope.warmup_communicators, [world], iterations=2 + (rank == 1), timeout=10
    )
    assert "rank 1" in str(error), error

# --- replicas ------------------------------------------------------------------------------------


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Dropout(0.3), nn.Linear(7, 5))
    model.register_buffer("steps", torch.tensor(seed))
    model.register_buffer("mask", torch.rand(3) > 0.5, persistent=False)
    return model


with report.check("buffers_too"):
    model = net(rank)
    model[1].running_mean.fill_(rank)
    result = hangscope.sync_parameters(model, world)
    assert result.messages == 1, "few large messages"
    assert model.steps.item() == 0
    assert model[1].running_mean.sum().item() == 0
    assert same_everywhere([*model.parameters(), *model.buffers()])

with report.check("replicas_that_differ_are_named_by_tensor"):
    model = net(7)
    assert compare_replicas(model) == []
    if rank == 3:
        model[1].running_mean.add_(1)
    differences = compare_replicas(model)
    assert [(d.name, d.kind, d.ranks) for d in differences] == [
        ("1.running_mean", "buffer", (3,))
    ], differences

with report.check("source_is_a_group_rank_sent_as_a_global_one"):
    model = net(10 + rank)
    group = rows[1] if rank >= 2 else rows[0]
    hangscope.sync_parameters(model, group, src=1)
    assert model.steps.item() == (11 if rank < 2 else 13), model.steps
    error = raises(ValueError, hangscope.sync_parameters, model, group, src=2 + rank)
    assert "group rank" in str(error)

with report.check("meta_tensors_are_materialised_and_ties_kept"):
    if rank == 0:
        model = net(3)
    else:
        with torch.device("meta"):
            model = net(3)
    model.tied = model[3]
    model.head = nn.Linear(7, 5)
    model.head.weight = model[3].weight
    if rank:
        model.head.bias = nn.Parameter(torch.empty(5))
    hangscope.sync_parameters(model, world)
    assert not any(t.is_meta for t in [*model.parameters(), *model.buffers()])
    assert model.head.weight is model[3].weight
    assert same_everywhere([*model.parameters(), *model.buffers()])

with report.check("meta_source_is_refused_by_all"):
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    error = raises(Disagreement, hangscope.sync_parameters, model, world)
    assert "rank 0" in str(error), error

with report.check("different_structure_is_refused_by_all_before_anything_is_sent"):
    model = nn.Linear(2, 3 if rank == 3 else 2)
    before = copy.deepcopy(model.state_dict())
    error = raises(Disagreement, hangscope.sync_parameters, model, world)
    assert "rank 3" in str(error), error
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())

with report.check("corruption_in_transit_is_found"):
    import hangscope.toolkit.warmup.parameters as parameters

    real_unpack = parameters._unpack
    if rank == 2:

        def corrupt(message, bucket):
            real_unpack(message, bucket)
            bucket[0].view(-1)[0] += 1

        parameters._unpack = corrupt
    error = raises(SyncError, hangscope.sync_parameters, net(1), world)
    parameters._unpack = real_unpack
    assert error.disagreeing == [2], error.disagreeing

with report.check("several_messages_give_the_same"):
    model = net(20 + rank)
    assert hangscope.sync_parameters(model, world, message_bytes=64).messages > 3
    assert same_everywhere([*model.parameters(), *model.buffers()])

# --- training ------------------------------------------------------------------------------------


def batches():
    generator = torch.Generator().manual_seed(100 + rank)
    while True:
        yield torch.randn(6, 5, generator=generator)


def state(model, optimizer, scheduler, scaler):
    def plain(value):
        if isinstance(value, torch.Tensor):
            value = value.to_local() if hasattr(value, "to_local") else value
            return value.detach().clone()
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return value

    local = [plain(t) for t in [*model.parameters(), *model.buffers()]]
    return plain(
        {
            "tensors": local,
            "grads": [None if p.grad is None else plain(p.grad) for p in model.parameters()],
            "states": [dict(optimizer.state.get(p, {})) for p in model.parameters()],
            "fresh": len(optimizer.state),
            "groups": [
                {k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups
            ],
            "schedule": scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler else None,
            "rng": torch.get_rng_state(),
        }
    )


def identical(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def exercise(wrap, make_optimizer, fresh: bool) -> None:
    """Warm-up must leave the state as it was, and training after it must go on as without it."""
    torch.manual_seed(5)
    model = wrap(net(4))
    optimizer = make_optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    data = Rewindable(batches())
    losses = []

    def step():
        optimizer.zero_grad()
        loss = model(next(data)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        return loss.item()

    if not fresh:
        step()
    before = state(model, optimizer, scheduler, None)
    result = hangscope.warmup_training(
        step, model=model, optimizer=optimizer, scheduler=scheduler, data=data, steps=3, timeout=60
    )
    after = state(model, optimizer, scheduler, None)
    for key, value in before.items():
        assert identical(value, after[key]), (key, value, after[key])
    assert fresh == (len(optimizer.state) == 0)
    warm = list(result.results)
    real = [step() for _ in range(3)]
    # The same batches, dropout, rates, momentum and weights give the same losses. DDP puts its
    # buckets into another order after its very first step, which no snapshot undoes: sums over
    # the ranks may then round differently.
    rebuilt = fresh and isinstance(model, DistributedDataParallel)
    close = [abs(a - b) <= (1e-6 if rebuilt else 0) for a, b in zip(real, warm, strict=True)]
    assert all(close), (real, warm)


def ddp(model):
    return DistributedDataParallel(model)


def fsdp2(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (4,))
    model[1] = nn.LayerNorm(7)
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def fsdp1(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model[1] = nn.LayerNorm(7)
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


for wrap in (lambda m: m, ddp, fsdp2, fsdp1):
    for optimizer in (sgd, adam):
        for fresh in (True, False):
            name = getattr(wrap, "__name__", "plain").replace("<lambda>", "plain")
            label = f"training_{name}_{optimizer.__name__}_{'fresh' if fresh else 'running'}"
            with report.check(label):
                exercise(wrap, optimizer, fresh)

with report.check("fsdp2_forward_only_step_leaves_no_gathered_parameters_behind"):
    torch.manual_seed(5)
    model = fsdp2(net(4))
    optimizer = sgd(model.parameters())
    x = torch.ones(6, 5)
    model.eval()
    with torch.no_grad():
        want = model(x)

    def step():
        model.train()
        model(x).square().mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(x)

    hangscope.warmup_training(step, model=model, optimizer=optimizer, timeout=60)
    with torch.no_grad():
        assert torch.equal(model(x), want)

with report.check("sharded_module_without_a_group_is_refused"):
    error = raises(ValueError, hangscope.sync_parameters, model, None)
    assert "replicate group" in str(error), error

with report.check("step_that_fails_on_one_rank_is_named_on_the_others"):
    model = net(1)
    before = model[0].weight.detach().clone()

    def failing():
        with torch.no_grad():
            model[0].weight.add_(1)
        if rank == 1:
            raise FileNotFoundError("shard 17")

    kind = FileNotFoundError if rank == 1 else WarmupError
    error = raises(kind, hangscope.warmup_training, failing, model=model, timeout=20)
    assert "shard 17" in str(error), error
    assert rank == 1 or error.failing == [1]
    assert torch.equal(model[0].weight, before), "restored although the step raised"

with report.check("data_that_cannot_go_back_is_refused"):
    error = raises(TypeError, hangscope.warmup_training, lambda: 0, model=net(1), data=batches())
    assert "Rewindable" in str(error), error

hangscope.destroy_distributed(timeout=3)
