"""Checks of this host: shared memory, open files, interfaces, environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.toolkit.doctor.model import ERROR, NOTE, WARNING, Finding, Surroundings
from hangscope.toolkit.environments.rules import find_problems

SHM_PER_RANK = 64 * 2**20
"""For NCCL's shared-memory transport and data-loader workers; Docker's default is 64 MiB in all."""
FILES_WANTED = 4096


def check_host(s: Surroundings) -> Iterator[Finding]:
    """Host limits that make jobs fail at start or later."""
    ranks = max(1, len(s.devices))
    if s.shm_bytes is not None and s.shm_bytes < SHM_PER_RANK * ranks + 1:
        yield Finding(
            WARNING,
            "shared-memory",
            f"/dev/shm has {s.shm_bytes / 2**20:.0f} MiB free for {ranks} rank(s) and their "
            "data-loader workers",
            "Start the container with --shm-size=8g or --ipc=host.",
        )
    if s.files_limit is not None and 0 < s.files_limit < FILES_WANTED:
        yield Finding(
            NOTE,
            "open-files",
            f"at most {s.files_limit} open files: rank 0's store needs one per rank",
            "Raise it with ulimit -n 65536 for large jobs.",
        )


def check_variables(s: Surroundings) -> Iterator[Finding]:
    """The warnings of `configure_environment`, as findings."""
    for problem in find_problems(s.env, s.version, s.interfaces):
        level = ERROR if problem.level == "error" else WARNING
        yield Finding(level, f"environment-{problem.kind}", problem.what, problem.fix)
    if s.env.get("HANGSCOPE") != "1":
        yield Finding(
            NOTE,
            "recording-off",
            "HANGSCOPE is not 1: a hang would leave nothing to analyse but its timeout",
            "Set HANGSCOPE=1.",
            "D19",
        )
    elif s.torch_version and not s.is_compiled:
        yield Finding(
            NOTE,
            "recording-uncompiled",
            "recording runs in Python and takes 10 to 20 us of every collective's call",
            "Run hangscope compile once, where there is g++: one to three remain.",
        )
