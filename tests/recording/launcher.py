"""Runs job scripts as real processes, and reads what their ranks found and what was recorded.

A script runs once per session however many tests ask for it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import psutil

JOBS = Path(__file__).parent / "jobs"
ROOT = Path(__file__).parents[2]
_STRAY = ("TORCHELASTIC", "SLURM_", "OMPI_", "PMI", "TORCH_NCCL", "TORCH_FR", "HANGSCOPE")
_STRAY_NAMES = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
    "MASTER_PORT",
}  # fmt: skip


@dataclass(frozen=True)
class JobResult:
    """How a job ended, and what its ranks reported (check name to ``"ok"`` or a traceback)."""

    returncode: int
    output: str
    ranks: dict[int, dict[str, str]] = field(default_factory=dict)
    values: dict[int, dict[str, object]] = field(default_factory=dict)

    def assert_ok(self, check: str) -> None:
        """The check ran and held on every rank."""
        assert self.ranks, f"no rank reported anything:\n{self.output[-4000:]}"
        for rank, checks in self.ranks.items():
            assert checks.get(check) == "ok", (
                f"rank {rank}, {check}: {checks.get(check, 'nothing reported')}\n"
                f"{self.output[-3000:]}"
            )

    @property
    def said(self) -> list[str]:
        """The lines HangScope wrote into the job's log."""
        return [line for line in self.output.splitlines() if line.startswith("[hangscope]")]


def environment(**extra: str) -> dict[str, str]:
    """This environment without what a surrounding job may have left in it."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _STRAY_NAMES and not name.startswith(_STRAY)
    }
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return env | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | extra


def recording(directory: Path | str, **extra: str) -> dict[str, str]:
    """An environment that records into a directory, without a monitor."""
    return environment(HANGSCOPE="1", HANGSCOPE_DIR=str(directory), HANGSCOPE_MONITOR="0", **extra)


def torchrun(
    script: str,
    nproc: int,
    env: dict[str, str],
    *,
    arguments: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    timeout_s: float = 180.0,
) -> JobResult:
    """``jobs/<script>.py`` under ``torchrun --standalone`` with ``nproc`` ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={nproc}", *options, str(JOBS / f"{script}.py"), *arguments]
    return run(command, env, timeout_s=timeout_s)


def ranks(
    script: str,
    size: int,
    env: dict[str, str],
    *,
    arguments: tuple[str, ...] = (),
    timeout_s: float = 120.0,
) -> JobResult:
    """``jobs/<script>.py`` once per rank, without a launcher; output in the order of ranks."""
    port = free_port()
    command = [sys.executable, str(JOBS / f"{script}.py"), *arguments]
    with tempfile.TemporaryDirectory() as results:
        running = [
            subprocess.Popen(
                command,
                env=env | world(rank, size, port) | {"RESULTS": results},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for rank in range(size)
        ]
        outputs, codes = [], []
        for process in running:
            output, code = _wait(process, timeout_s)
            outputs.append(output)
            codes.append(code)
        return _collect(results, max(codes, key=abs), "".join(outputs))


def world(rank: int, size: int, port: int) -> dict[str, str]:
    """What a launcher tells one rank."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def run(command: list[str], env: dict[str, str], *, timeout_s: float = 120.0) -> JobResult:
    """Any command as a job; killed with all it started when it takes too long."""
    with tempfile.TemporaryDirectory() as results:
        process = subprocess.Popen(
            command,
            env=env | {"RESULTS": results},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        output, code = _wait(process, timeout_s)
        return _collect(results, code, output)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def complete_job(script: str, nproc: int = 2) -> JobResult:
    """A job of the coverage table: recorded, with torch's own recorder on beside."""
    folder = tempfile.mkdtemp(prefix="hangscope-test-")
    try:
        env = recording(folder, TORCH_FR_BUFFER_SIZE="20000")
        return torchrun(script, nproc, env, timeout_s=240)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: subprocess.Popen[str], timeout_s: float) -> tuple[str, int]:
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        # torchrun gives each rank a session of its own: a process group is not enough.
        for child in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                child.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\n[killed after {timeout_s} s]"
    return output, process.returncode


def _collect(folder: str, code: int, output: str) -> JobResult:
    found: dict[int, dict[str, str]] = {}
    values: dict[int, dict[str, object]] = {}
    for path in Path(folder).glob("rank*.json"):
        rank = int(path.stem.removeprefix("rank"))
        data = json.loads(path.read_text())
        found[rank], values[rank] = data["checks"], data["values"]
    return JobResult(code, output, found, values)
