"""Runs the job scripts of this folder, recorded."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests import real_jobs
from tests.real_jobs import JobResult, environment

JOBS = Path(__file__).parent / "jobs"


def recording(directory: Path | str, **extra: str) -> dict[str, str]:
    """An environment that records into a directory, without a monitor."""
    return environment(HANGSCOPE="1", HANGSCOPE_DIR=str(directory), HANGSCOPE_MONITOR="0", **extra)


def ranks(
    script: str,
    size: int,
    env: dict[str, str],
    *,
    arguments: tuple[str, ...] = (),
    modules: Sequence[str] = (),
    timeout_s: float = 120.0,
) -> JobResult:
    """``jobs/<script>.py`` once per rank, without a launcher."""
    path = JOBS / f"{script}.py"
    return real_jobs.ranks(
        path, size, env, arguments=arguments, modules=modules, timeout_s=timeout_s
    )


@functools.cache
def complete_job(script: str, nproc: int = 2) -> JobResult:
    """A job of the coverage table: recorded, with torch's own recorder on beside.

    It runs once per session however many tests ask for it.
    """
    folder = tempfile.mkdtemp(prefix="hangscope-test-")
    try:
        env = recording(folder, TORCH_FR_BUFFER_SIZE="20000")
        # DistributedDataParallel imports dynamo.
        modules = ["torch._dynamo"] * (script == "parallel_job")
        return ranks(script, nproc, env, modules=modules, timeout_s=240)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_waits_on_several_threads(hook: str, **extra: str) -> None:
    """Works are unboxed by whichever thread is first; each ends up finished."""
    command = [sys.executable, str(JOBS / "waiting_job.py")]
    job = real_jobs.run(command, environment(HANGSCOPE_MONITOR="0", **extra))
    assert job.returncode == 0, job.output
    assert job.said == []
    report = json.loads(job.output.splitlines()[-1])
    assert report["hook"] == hook
    assert report["records"] == report["issued"] == 1200
    assert report["states"] == [2]
    assert report["completed"] == [300] * 4
    assert report["left"] == {"boxed": 0, "watched": 0, "pending": 0}
