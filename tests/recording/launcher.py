"""Runs the job scripts of this folder, recorded."""

from __future__ import annotations

import functools
import shutil
import tempfile
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
    timeout_s: float = 120.0,
) -> JobResult:
    """``jobs/<script>.py`` once per rank, without a launcher."""
    path = JOBS / f"{script}.py"
    return real_jobs.ranks(path, size, env, arguments=arguments, timeout_s=timeout_s)


@functools.cache
def complete_job(script: str, nproc: int = 2) -> JobResult:
    """A job of the coverage table: recorded, with torch's own recorder on beside.

    It runs once per session however many tests ask for it.
    """
    folder = tempfile.mkdtemp(prefix="hangscope-test-")
    try:
        env = recording(folder, TORCH_FR_BUFFER_SIZE="20000")
        return ranks(script, nproc, env, timeout_s=240)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
