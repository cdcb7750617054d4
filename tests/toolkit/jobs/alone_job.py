"""A world of one, without CUDA and without a launcher: everything works or says why it does not."""

import warnings

import torch
import torch.distributed as dist

import hangscope
from tests.job_report import Report

report = Report()


def warned(call, *args, **kwargs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*args, **kwargs)
    assert any("not initialised" in str(w.message) for w in caught), [
        str(w.message) for w in caught
    ]
    return result


model = torch.nn.Linear(2, 2)
with report.check("no_op_with_a_warning_when_nothing_is_initialised"):
    warned(hangscope.barrier)
    assert warned(hangscope.warmup_communicators) == []
    assert warned(hangscope.sync_parameters, model, None) is None
    tensor = torch.ones(3)
    assert warned(hangscope.deterministic_all_reduce, tensor) is tensor
    assert torch.equal(tensor, torch.ones(3))
    assert warned(hangscope.check_all_reduce, tensor) is None
    assert hangscope.destroy_distributed() is True

with report.check("training_warmup_works_alone"):
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    hangscope.warmup_training(step, model=model, optimizer=optimizer)
    assert torch.equal(model.weight, before)

with report.check("world_of_one_needs_no_group"):
    assert hangscope.init_distributed() is None
    assert not dist.is_initialized()

with report.check("world_of_one_with_a_mesh"):
    mesh = hangscope.init_distributed({"dp_shard": -1, "tp": 1})
    assert mesh.shape == (1, 1)
    hangscope.barrier(5)
    tensor = torch.tensor([3.0])
    assert hangscope.deterministic_all_reduce(tensor, op="mean").item() == 3
    assert hangscope.check_all_reduce(tensor).bitwise_equal
    assert len(hangscope.warmup_communicators()) >= 1
    assert hangscope.sync_parameters(model, None).tensors == 2
    hangscope.destroy_distributed()
