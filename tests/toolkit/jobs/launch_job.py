"""Joining and leaving a job of eight ranks."""

import os
import random
import time
import warnings

import numpy as np
import torch
import torch.distributed as dist

import hangscope
from tests.job_report import Report, raises

report = Report()
rank = report.rank

with report.check("world_info"):
    info = hangscope.get_world_info()
    assert info == hangscope.WorldInfo(rank, rank, 8, 8), info

with report.check("arguments_that_cannot_be_right_start_nothing"):
    error = raises(ValueError, hangscope.init_distributed, {"tp": 3})
    assert "world size 8" in str(error), error
    raises(ValueError, hangscope.init_distributed, {"xx": 2})
    raises(ValueError, hangscope.init_distributed, backend="nccl")
    assert not dist.is_initialized()

with report.check("mesh_that_differs_between_ranks_is_refused_by_all"):
    error = raises(
        ValueError, hangscope.init_distributed, {"tp": 2 if rank == 5 else 4}, init_timeout=30
    )
    assert "rank 5" in str(error), error
    assert not dist.is_initialized()

with report.check("named_mesh"):
    mesh = hangscope.init_distributed({"tp": 2, "pp": 2}, init_timeout=60, timeout=60, seed=7)
    assert mesh.mesh_dim_names == ("pp", "dp_shard", "tp"), mesh.mesh_dim_names
    assert mesh.shape == (2, 2, 2), mesh.shape
    assert mesh["tp"].get_local_rank() == rank % 2
    assert mesh["pp"].get_local_rank() == rank // 4

with report.check("seeds_carry_the_pipeline_offset"):
    stage = rank // 4
    want = torch.Generator().manual_seed(7 + stage)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=want))
    assert random.random() == random.Random(7 + stage).random()
    assert np.random.rand() == np.random.RandomState(7 + stage).rand()

with report.check("collectives_work_in_every_dimension"):
    for name in mesh.mesh_dim_names:
        ones = torch.ones(1)
        dist.all_reduce(ones, group=mesh.get_group(name))
        assert ones.item() == 2

with report.check("second_init_is_refused"):
    raises(RuntimeError, hangscope.init_distributed)

with report.check("environment_is_configured"):
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"

with report.check("destroy_and_start_again"):
    assert hangscope.destroy_distributed() is True
    assert not dist.is_initialized()
    assert hangscope.destroy_distributed() is True
    assert hangscope.init_distributed(init_timeout=60) is None
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == 8

real = dist.destroy_process_group

with report.check("destroy_never_hides_the_first_error"):

    def broken(group=None):
        raise RuntimeError("teardown failed")

    dist.destroy_process_group = broken
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def fail() -> None:
            try:
                raise KeyError("the first error")
            finally:
                hangscope.destroy_distributed()

        assert "the first error" in str(raises(KeyError, fail))
    assert any("teardown failed" in str(w.message) for w in caught)
    raises(RuntimeError, hangscope.destroy_distributed)

with report.check("destroy_never_hangs"):
    dist.destroy_process_group = lambda group=None: time.sleep(60)
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert hangscope.destroy_distributed(timeout=0.5) is False
    assert time.monotonic() - began < 5
    assert any("did not return" in str(w.message) for w in caught)

dist.destroy_process_group = real
hangscope.destroy_distributed()
