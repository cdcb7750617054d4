"""A recorded job: the barrier says what the missing rank was last doing."""

import time

import torch
import torch.distributed as dist

import hangscope
from tests.job_report import Report, raises

report = Report()
hangscope.init_distributed(init_timeout=30)
dist.all_reduce(torch.ones(2))


def load_forever() -> None:
    time.sleep(6)


if report.rank == 1:
    load_forever()
else:
    with report.check("last_seen"):
        error = raises(hangscope.BarrierTimeout, hangscope.barrier, 3, "checkpoint")
        report.values["message"] = str(error)
        last = error.details[1].last
        assert "load_forever" in last, (last, str(error))
        assert "all_reduce #1" in last, last
        assert last in str(error)
