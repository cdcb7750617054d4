"""How often ranks meet: every phase once, and never a collective where a meeting is enough."""

import torch
import torch.distributed as dist

import hangscope
from hangscope.toolkit.barriers import agreement, barrier, meeting
from tests.job_report import Report

report = Report()
meetings: list[str] = []
real = meeting.meet


def counted(store_group, **options):
    meetings.append(store_group.name.split("/")[1])
    return real(store_group, **options)


for module in (meeting, barrier, agreement):
    module.meet = counted


def met(call, *args, **kwargs) -> list[str]:
    meetings.clear()
    call(*args, **kwargs)
    return list(meetings)


def sequence() -> int:
    return dist.group.WORLD._get_sequence_number_for_group()


with report.check("init_meets_once_before_and_once_after"):
    names = met(hangscope.init_distributed, {"dp_shard": -1}, init_timeout=60)
    assert names == ["rendezvous", "barrier"], names

with report.check("each_tool_meets_only_where_it_must"):
    model = torch.nn.Linear(2, 2)
    world = dist.group.WORLD
    assert met(hangscope.barrier, 30) == ["barrier"]
    assert met(hangscope.sync_parameters, model, world) == ["sync", "sync"]
    assert met(hangscope.warmup_training, lambda: 0, model=model) == ["training", "training"]
    assert met(hangscope.warmup_communicators, [world]) == ["warmup", "warmup"]
    assert met(hangscope.deterministic_all_reduce, torch.ones(2)) == ["reduce"]
    assert met(hangscope.destroy_distributed) == []
    hangscope.init_distributed(init_timeout=60)

with report.check("collectives_only_where_data_must_travel"):
    before = sequence()
    hangscope.barrier(30)
    hangscope.warmup_training(lambda: 0, model=model)
    assert sequence() == before
    hangscope.sync_parameters(model, dist.group.WORLD)
    assert sequence() == before + 1, "one message for the whole model"

hangscope.destroy_distributed()
