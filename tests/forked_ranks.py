"""Starts the ranks of a job as forks of one process that has imported torch.

Most of what a short job costs is the import of torch, once per rank. The ranks are processes of
their own all the same, with their own environment, start time and random numbers. Recorded jobs are
not started like this, because recording begins when torch is imported.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.real_jobs import JobResult, environment, run


def forked(
    script: Path,
    environments: Sequence[dict[str, str]],
    *,
    arguments: Sequence[str] = (),
    preload: Sequence[str] = ("torch.distributed",),
    timeout_s: float = 120.0,
) -> JobResult:
    """A script once per environment, with modules that all of them share."""
    assert not any("HANGSCOPE" in variables for variables in environments)
    plan = json.dumps({"modules": list(preload), "environments": list(environments)})
    command = [sys.executable, "-m", "tests.forked_ranks", plan, str(script), *arguments]
    return run(command, environment(), timeout_s=timeout_s)


def _main() -> None:
    plan = json.loads(sys.argv[1])
    for module in plan["modules"]:
        importlib.import_module(module)
    gc.freeze()  # a collection in one rank copies no pages of what all share
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_run_rank, args=(each,)) for each in plan["environments"]]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))


def _run_rank(variables: dict[str, str]) -> None:
    os.environ.update(variables)
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main()
