"""Runs the job scripts of this folder."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import real_jobs
from tests.real_jobs import JobResult, environment, run_each

JOBS = Path(__file__).parent / "jobs"


@functools.cache
def torchrun(script: str, nproc: int, restarts: int = 0) -> JobResult:
    """``jobs/<script>.py`` under torchrun, once per session however many tests ask for it."""
    options = [f"--max-restarts={restarts}"]
    return real_jobs.torchrun(JOBS / f"{script}.py", nproc, environment(), options=options)


def processes(
    script: str, environments: Sequence[dict[str, str]], arguments: Sequence[str] = ()
) -> JobResult:
    """``jobs/<script>.py`` once per environment, without a launcher."""
    command = [sys.executable, str(JOBS / f"{script}.py"), *arguments]
    return run_each(command, [environment(**extra) for extra in environments], timeout_s=60.0)
