"""Runs commands as real jobs, under torchrun or rank by rank, and reads what their ranks report.

A job script reports each of its checks by name (see `tests/job_report.py`); a test asserts one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from tools.forkserver import ForkedProcess, ForkServer, is_forkable, read_when_loaded
from tools.ports import free_port

ROOT = Path(__file__).parents[1]
_STRAY = ("TORCHELASTIC", "SLURM_", "OMPI_", "PMI", "TORCH_NCCL", "TORCH_FR", "HANGSCOPE")
_STRAY_NAMES = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
    "MASTER_PORT", "NCCL_TIMEOUT",
}  # fmt: skip


@dataclass(frozen=True)
class JobResult:
    """How a job ended, and what its ranks reported (check name to ``"ok"`` or a traceback)."""

    returncode: int
    output: str
    ranks: dict[int, dict[str, str]] = field(default_factory=dict)
    values: dict[int, dict[str, object]] = field(default_factory=dict)

    def assert_ok(self, check: str, ranks: Sequence[int] = ()) -> None:
        """Assert that the check passed on every rank that reported, or on these."""
        assert self.ranks, f"no rank reported anything:\n{self.output[-4000:]}"
        for rank in ranks or self.ranks:
            found = self.ranks.get(rank, {}).get(check, "nothing reported")
            assert found == "ok", f"rank {rank}, {check}: {found}\n{self.output[-3000:]}"

    @property
    def said(self) -> list[str]:
        """The lines HangScope wrote into the job's log."""
        return [line for line in self.output.splitlines() if line.startswith("[hangscope]")]


def environment(**extra: str) -> dict[str, str]:
    """The environment without variables of a surrounding job."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _STRAY_NAMES and not name.startswith(_STRAY)
    }
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env["HANGSCOPE_COMPILED"] = os.environ.get("HANGSCOPE_COMPILED", "0")
    return env | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | extra


def worlds(size: int, started: Iterable[int] | None = None) -> list[dict[str, str]]:
    """A launcher's variables for each of the ``started`` ranks (default: all) of such a world."""
    port = str(free_port())
    return [
        {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }
        for rank in (range(size) if started is None else started)
    ]  # fmt: skip


def torchrun(
    script: Path,
    nproc: int,
    env: dict[str, str],
    *,
    arguments: Sequence[str] = (),
    options: Sequence[str] = (),
    timeout_s: float = 180.0,
) -> JobResult:
    """A script under ``torchrun --standalone`` with ``nproc`` ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={nproc}", *options, str(script), *arguments]
    return run(command, env, timeout_s=timeout_s)


def ranks(
    script: Path,
    size: int,
    env: dict[str, str],
    *,
    arguments: Sequence[str] = (),
    modules: Sequence[str] = (),
    timeout_s: float = 120.0,
    new: bool = False,
) -> JobResult:
    """A script once per rank. No launcher: that costs as much as a rank, and proves nothing more
    where a job is not about launching, restarting or stopping ranks.
    """
    command = [sys.executable, str(script), *arguments]
    places = [env | place for place in worlds(size)]
    return run_each(command, places, timeout_s=timeout_s, modules=modules, new=new)


def run(command: Sequence[str], env: dict[str, str], *, timeout_s: float = 120.0) -> JobResult:
    """Run any command as a job; after the timeout, it and all its children are killed."""
    return run_each(command, [env], timeout_s=timeout_s)


def run_each(
    command: Sequence[str],
    environments: Sequence[dict[str, str]],
    *,
    timeout_s: float = 120.0,
    results: Path | None = None,
    modules: Sequence[str] = (),
    new: bool = False,
) -> JobResult:
    """Run the command once per environment, in parallel; output is in the same order.

    Parameters
    ----------
    results:
        A folder for what the processes report, to be kept.
    modules:
        What the ranks would import besides torch, and take long to.
    new:
        Programs are new processes, and not forks of one that has imported torch.
    """
    with contextlib.ExitStack() as stack:
        results = results or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = [
            _start(command, env | {"RESULTS": str(results)}, modules, new) for env in environments
        ]
        pids = [process.pid for process in running]
        outputs = [_output_of(process, timeout_s, results, pids) for process in running]
        code = max((process.returncode or 0 for process in running), key=abs)
        return _collect(results, code, "".join(outputs))


@contextlib.contextmanager
def beside(
    command: Sequence[str], environments: Sequence[dict[str, str]], log: Path
) -> Iterator[list[subprocess.Popen[str] | ForkedProcess]]:
    """Run the command once per environment beside the test, after which it is killed.

    Its output goes into the log.
    """
    with tempfile.TemporaryDirectory() as results, open(log, "ab") as file:
        running = [
            _start(command, env | {"RESULTS": results}, (), False, file) for env in environments
        ]
        try:
            yield running
        finally:
            _kill(Path(results), [process.pid for process in running])
            for process in running:
                process.wait(30.0)


def _start(
    command: Sequence[str],
    env: dict[str, str],
    modules: Sequence[str],
    new: bool,
    log: IO[bytes] | None = None,
) -> subprocess.Popen[str] | ForkedProcess:
    plain = environment()
    if not new and is_forkable(command, env, plain):
        loaded = frozenset(read_when_loaded(plain).items())
        return _fork_server(loaded).start(command, env, modules, log)
    return subprocess.Popen(
        command,
        env=env,
        stdout=log or subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@functools.cache
def _fork_server(variables: frozenset[tuple[str, str]]) -> ForkServer:
    return ForkServer({"PATH": os.environ["PATH"], **dict(variables)})


def _output_of(
    process: subprocess.Popen[str] | ForkedProcess, timeout_s: float, results: Path, pids: list[int]
) -> str:
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException as error:  # also what interrupts a test that takes too long
        _kill(results, pids)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        output, _ = process.communicate(timeout=30.0)
        output += f"\n[killed after {timeout_s} s]"
    return output


def _kill(results: Path, sessions: Sequence[int]) -> None:
    """Kill all processes of the job: orphans, too, and torchrun gives each rank its own session."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            ours = process.environ().get("RESULTS") == str(results)
            if ours or os.getsid(process.pid) in sessions:
                process.kill()


def _collect(results: Path, code: int, output: str) -> JobResult:
    checks: dict[int, dict[str, str]] = {}
    values: dict[int, dict[str, object]] = {}
    for path in results.glob("rank*.json"):
        rank = int(path.stem.removeprefix("rank"))
        data = json.loads(path.read_text())
        checks[rank], values[rank] = data["checks"], data["values"]
    return JobResult(code, output, checks, values)
