"""Runs the job scripts of this folder."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.depth import DEEP
from tests.real_jobs import JobResult, environment, run_each, worlds

JOBS = Path(__file__).parent / "jobs"


@functools.cache
def world(script: str, size: int) -> JobResult:
    """``jobs/<script>.py`` once per rank, once per session however many tests ask for it."""
    path = JOBS / f"{script}.py"
    # DistributedDataParallel and FSDP import dynamo.
    modules = ["torch._dynamo"] * ("fsdp" in path.read_text())
    places = [environment() | place for place in worlds(size)]
    return run_each([sys.executable, str(path)], places, modules=modules, timeout_s=180.0)


def reduction_job() -> JobResult:
    """The deterministic all-reduce in worlds of every size up to 4; up to 8 at depth."""
    return world("reduction_job", 8 if DEEP else 4)


def processes(
    script: str, environments: Sequence[dict[str, str]], arguments: Sequence[str] = ()
) -> JobResult:
    """``jobs/<script>.py`` once per environment, without a launcher."""
    command = [sys.executable, str(JOBS / f"{script}.py"), *arguments]
    return run_each(command, [environment(**extra) for extra in environments], timeout_s=60.0)


@functools.cache
def alone_job() -> JobResult:
    """The job of a single process without a launcher, once per session."""
    return processes("alone_job", [{}])
