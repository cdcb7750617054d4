"""The same reduction in another run: the test compares the bits of two launches."""

import random
import time

import torch

import hangscope
from hangscope.toolkit.tensors import checksum
from tests.job_report import Report

report = Report()
hangscope.init_distributed(init_timeout=60, timeout=60)
generator = torch.Generator().manual_seed(report.rank)
with report.check("reduced"):
    for mode in ("ordered_rank_reference", "balanced_tree"):
        time.sleep(random.random() * 0.2)
        tensor = torch.randn(999, generator=generator) * 1e3
        report.values[mode] = checksum([hangscope.deterministic_all_reduce(tensor, mode=mode)])
hangscope.destroy_distributed()
