"""Join by whatever environment there is, reduce once, leave."""

import torch
import torch.distributed as dist

import hangscope
from tests.job_report import Report, raises

report = Report()
expected_missing = None
import os  # noqa: E402

if "EXPECT_MISSING" in os.environ:
    expected_missing = [int(r) for r in os.environ["EXPECT_MISSING"].split(",")]
    with report.check("missing_rank_at_init_named"):
        error = raises(hangscope.BarrierTimeout, hangscope.init_distributed, init_timeout=4)
        assert error.missing == expected_missing, (error.missing, str(error))
        assert "MASTER_ADDR" in str(error) or "127.0.0.1" in str(error), str(error)
        report.values["message"] = str(error)
else:
    with report.check("joins"):
        hangscope.init_distributed(init_timeout=30)
        world = hangscope.get_world_info()
        report.values["port"] = os.environ.get("MASTER_PORT")
        report.values["addr"] = os.environ.get("MASTER_ADDR")
        if world.world_size > 1:
            ones = torch.ones(1)
            dist.all_reduce(ones)
            assert ones.item() == world.world_size
            assert dist.get_rank() == world.rank
        else:
            assert not dist.is_initialized()
        hangscope.destroy_distributed()
