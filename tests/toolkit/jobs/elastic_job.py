"""A job that torchrun restarts: one store, two attempts, and nothing of the first in the second."""

import os
import time

import torch
import torch.distributed as dist

import hangscope
from tests.job_report import Report

report = Report()
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with report.check(f"joins_in_attempt_{attempt}"):
    hangscope.init_distributed(init_timeout=30, timeout=30)

with report.check(f"meets_in_attempt_{attempt}"):
    if report.rank == 0:
        time.sleep(0.5)
    came = time.monotonic()  # one clock for all processes of a host, and nobody sets it
    hangscope.barrier(20, "both attempts come here")
    times: list = [None] * dist.get_world_size()
    dist.all_gather_object(times, (came, time.monotonic()))
    last, first = max(c for c, _ in times), min(g for _, g in times)
    assert last <= first + 0.001, f"old keys let it pass: came and went at {times}"
    assert hangscope.deterministic_all_reduce(torch.ones(1)).item() == dist.get_world_size()

if attempt == "0" and report.rank == 1:
    os._exit(3)
if attempt == "0":
    time.sleep(30)  # until torchrun ends it
hangscope.destroy_distributed()
