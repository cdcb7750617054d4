"""Sampling the all-reduces of a running job of four ranks."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import hangscope
from hangscope.toolkit.reductions.sampler import PENDING, ReductionSampler
from tests.job_report import Report, raises

report = Report()
hangscope.init_distributed(init_timeout=60, timeout=60)
rank = dist.get_rank()
pair = dist.new_group([1, 3])
folder = Path(os.environ["RESULTS"]) / "findings"
findings: list[dict] = []


def sampler(every: int) -> ReductionSampler:
    findings.clear()
    return ReductionSampler(every, directory=folder, on_finding=findings.append)


def run(watch, tensor, group=None, asynchronous=False, corrupt=None, op=dist.ReduceOp.SUM):
    """An all-reduce as the recorder's hook sees it; ``corrupt`` changes the result on arrival."""
    token = watch.before("all_reduce", [tensor], group, reduce_op=str(op), async_op=asynchronous)
    work = dist.all_reduce(tensor, op=op, group=group, async_op=True)
    if corrupt is not None:
        work.wait()
        corrupt(tensor)
    watch.after(token, [tensor], work, group)
    work.wait()
    return tensor


def settle(watch) -> list[dict]:
    """Findings of all ranks, after everything was compared."""
    watch.drain()
    hangscope.barrier(30, "settle")
    watch.drain()
    all_findings: list = [None] * 4
    dist.all_gather_object(all_findings, list(findings))
    return [f for of_rank in all_findings for f in of_rank]


def total_checked(watch) -> int:
    counts: list = [None] * 4
    dist.all_gather_object(counts, watch.checked)
    return sum(counts)


with report.check("no_false_alarm_though_results_change_at_once"):
    watch = sampler(1)
    for step in range(20):
        for kind in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
            tensor = (torch.randn(257) * 100).to(kind)
            run(watch, tensor, asynchronous=bool(step % 2))
            tensor.fill_(rank)  # as an optimizer that clips gradients in place would
        time.sleep(0.002)
    assert settle(watch) == []
    assert total_checked(watch) >= PENDING, (watch.checked, watch.dropped)

with report.check("every_nth_only_and_the_same_on_all"):
    watch = sampler(5)
    for _ in range(23):
        run(watch, torch.ones(8))
        time.sleep(0.005)
    assert settle(watch) == []
    assert total_checked(watch) == 4, total_checked(watch)

with report.check("corruption_on_one_rank_is_pinned_on_it"):
    watch = sampler(2)
    for number in range(1, 5):
        bad = (lambda t: t.view(-1)[3].add_(1e-3)) if rank == 2 and number == 4 else None
        run(watch, torch.randn(1000), corrupt=bad)
    found = settle(watch)
    assert len(found) == 1, found
    assert found[0]["accused"] == [2]
    assert found[0]["number"] == 4
    assert found[0]["kind"] == "reduction_corrupt"
    written = "".join(p.read_text() for p in folder.glob("reduction_rank*.jsonl"))
    assert written.count("reduction_corrupt") == 1, written

with report.check("the_same_corruption_on_all_ranks_is_seen_by_the_sum"):
    watch = sampler(1)
    run(watch, torch.randn(1000), corrupt=lambda t: t.view(-1)[500].add_(1.0))
    found = settle(watch)
    assert len(found) == 1, found
    assert found[0]["accused"] == []
    assert len(found[0]["wrong_blocks"]) == 1

with report.check("subgroup_average_and_max"):
    watch = sampler(1)
    if rank in (1, 3):
        run(watch, torch.randn(50), pair)
    run(watch, torch.randn(50), op=dist.ReduceOp.MAX)
    assert settle(watch) == []
    if rank in (1, 3):
        run(watch, torch.ones(50), pair, corrupt=(lambda t: t.add_(1)) if rank == 1 else None)
    found = settle(watch)
    assert len(found) == 1, found
    assert found[0]["accused"] == [1, 3], "two members: no majority"
    assert found[0]["ambiguous"]

with report.check("a_rank_that_never_samples_blocks_nobody"):
    watch = sampler(1)
    began = time.monotonic()
    tensor = torch.ones(4)
    if rank == 0:
        dist.all_reduce(tensor)
    else:
        run(watch, tensor)
    assert time.monotonic() - began < 5
    assert settle(watch) == []

with report.check("refuses_nonsense_and_other_operations"):
    raises(ValueError, ReductionSampler, 0)
    watch = sampler(1)
    assert watch.before("broadcast", [torch.ones(1)]) is None
    watch.after(None, [torch.ones(1)])

hangscope.destroy_distributed()
