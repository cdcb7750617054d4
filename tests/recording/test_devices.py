"""NCCL on real GPUs, if there are any; ``make test-all`` runs the same job on Gloo everywhere.

``python -m pytest tests/recording/test_devices.py`` on a machine with one GPU or more shows what a
machine without one cannot: numbers against the native recorder's, counters from ``pg_status``,
captures, and a dump that NCCL's own watchdog wrote, put together with the ring.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from hangscope.recording.native_dumps import STEM
from hangscope.trace.load import load_trace
from hangscope.trace.model import Flag, State
from tests.real_jobs import JobResult, ranks
from tests.recording.coverage import checks_of
from tests.recording.launcher import JOBS, recording

pytestmark = pytest.mark.xdist_group("devices")

GPUS = torch.cuda.device_count()
MAX_GPUS = 8
SHARING = 4
"""Ranks that share the GPUs of a machine with fewer (see `tools.gpus`)."""
WATCHDOG_S = 10.0
needs_gpu = pytest.mark.skipif(not GPUS, reason="no GPU")
may_share = pytest.mark.skipif(not 0 < GPUS < SHARING, reason="no GPU, or enough of them")
PLACES = [
    pytest.param("cpu", "gloo", 2, id="gloo", marks=pytest.mark.slow),
    pytest.param("cuda", "nccl", min(GPUS, MAX_GPUS), id="nccl", marks=needs_gpu),
    pytest.param("cuda", "nccl", SHARING, id="nccl-shared", marks=may_share),
]


@functools.cache
def device_job(device: str, backend: str, count: int, directory: Path) -> JobResult:
    """The job, once per place: a rank per GPU, several on one, or two ranks on Gloo."""
    return ranks(
        JOBS / "device_job.py",
        count,
        recording(directory, TORCH_FR_BUFFER_SIZE="20000"),
        arguments=[device, backend],
        timeout_s=240,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the run directories of this module's jobs."""
    return tmp_path_factory.mktemp("devices")


@pytest.mark.parametrize(("device", "backend", "count"), PLACES)
@pytest.mark.parametrize("check", checks_of("device_job"))
def test_operations_on_a_device_are_recorded(
    check: str, device: str, backend: str, count: int, runs: Path
) -> None:
    device_job(device, backend, count, runs / f"{device}-{count}").assert_ok(check)


@pytest.mark.parametrize(("device", "backend", "count"), PLACES)
def test_job_on_a_device_ends_as_without_recording(
    device: str, backend: str, count: int, runs: Path
) -> None:
    job = device_job(device, backend, count, runs / f"{device}-{count}")
    assert job.returncode == 0, job.output[-3000:]
    assert job.said == []


@needs_gpu
def test_hung_device_is_recorded_like_its_watchdog_saw_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    env = recording(
        run,
        TORCH_NCCL_DUMP_ON_TIMEOUT="1",
        TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="3000",
        TORCH_FR_BUFFER_SIZE="2000",
    )
    job = ranks(JOBS / "device_hang_job.py", 1, env, arguments=[str(WATCHDOG_S)], timeout_s=240)
    assert job.returncode != 0, "the watchdog did not end it"
    assert (run / f"{STEM}0").exists(), job.output[-3000:]
    records = load_trace([run]).records
    of_job = records[records["rank"] == 0]
    *before, last = of_job["state"].tolist()
    assert set(before) == {State.COMPLETED}, before
    assert last != State.COMPLETED
    assert not np.any(of_job["flags"] & Flag.UNOBSERVED)
    assert (of_job["completed_ns"][:-1] > 0).all()
