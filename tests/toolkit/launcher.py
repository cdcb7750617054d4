"""Run a script as a real job, under torchrun or as bare processes, and read what its ranks found.

A job script reports each of its checks by name (see `jobs/harness.py`); a test asserts one name.
A script runs once per session however many tests ask for it.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

JOBS = Path(__file__).parent / "jobs"
_INHERITED = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "HANGSCOPE",
    "HANGSCOPE_DIR",
    "NCCL_TIMEOUT",
)


@dataclass(frozen=True)
class JobResult:
    """What the ranks reported: check name to ``"ok"`` or a traceback, per rank."""

    returncode: int
    ranks: dict[int, dict[str, str]]
    values: dict[int, dict[str, object]] = field(default_factory=dict)
    output: str = ""

    def assert_ok(self, check: str, ranks: list[int] | None = None) -> None:
        """The check ran and held on every rank that reported (or on exactly ``ranks``)."""
        found = {rank: checks.get(check) for rank, checks in self.ranks.items()}
        wanted = ranks if ranks is not None else list(found)
        assert wanted, f"no rank reported anything:\n{self.output[-4000:]}"
        for rank in wanted:
            assert found.get(rank) == "ok", (
                f"rank {rank}, {check}: {found.get(rank, 'nothing reported')}\n"
                f"{self.output[-3000:]}"
            )


def clean_environment(**extra: str) -> dict[str, str]:
    """This environment without what a surrounding job may have left in it."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _INHERITED
        and not name.startswith(("TORCHELASTIC", "SLURM_", "OMPI_", "TORCH_NCCL", "PMIX"))
    }
    root = str(Path(__file__).parents[2])
    env["PYTHONPATH"] = os.pathsep.join([root, env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return env | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | extra


@functools.cache
def torchrun(script: str, nproc: int, timeout_s: float = 120.0, restarts: int = 0) -> JobResult:
    """``jobs/<script>.py`` under ``torchrun --standalone`` with ``nproc`` ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={nproc}", f"--max-restarts={restarts}"]
    command += [str(JOBS / f"{script}.py")]
    with tempfile.TemporaryDirectory() as folder:
        env = clean_environment(RESULTS=folder)
        output, code = _run(command, env, timeout_s)
        return _collect(folder, code, output)


def processes(
    script: str,
    environments: list[dict[str, str]],
    timeout_s: float = 60.0,
    arguments: list[str] | None = None,
) -> JobResult:
    """``jobs/<script>.py`` once per environment, as bare processes without a launcher."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(JOBS / f"{script}.py"), *(arguments or [])]
        running = [
            subprocess.Popen(
                command,
                env=clean_environment(RESULTS=folder, **extra),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for extra in environments
        ]
        outputs, codes = [], []
        try:
            for process in running:
                outputs.append(process.communicate(timeout=timeout_s)[0])
                codes.append(process.returncode)
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
        return _collect(folder, max(codes, default=1), "\n".join(outputs))


def static_world(size: int, started: list[int] | None = None) -> list[dict[str, str]]:
    """Environments of ``started`` ranks (all by default) of a world without a launcher."""
    port = str(free_port())
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in (started if started is not None else range(size))
    ]


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(command: list[str], env: dict[str, str], timeout_s: float) -> tuple[str, int]:
    process = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its workers, which are in sessions of their own
        try:
            output, _ = process.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        output += f"\n[killed after {timeout_s} s]"
    return output, process.returncode


def _collect(folder: str, code: int, output: str) -> JobResult:
    ranks: dict[int, dict[str, str]] = {}
    values: dict[int, dict[str, object]] = {}
    for path in Path(folder).glob("rank*.json"):
        rank = int(path.stem.removeprefix("rank"))
        data = json.loads(path.read_text())
        ranks[rank], values[rank] = data["checks"], data["values"]
    return JobResult(code, ranks, values, output)
