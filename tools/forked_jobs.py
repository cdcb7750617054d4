"""Runs whole jobs whose ranks are forks of one process that has imported torch.

Like torchrun, it hosts the store, and when a rank fails, it stops the others with SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tools.forkserver import ForkedProcess, ForkServer
from tools.ports import free_port

TERM_GRACE_S = 5.0
POLL_S = 0.02
_STORE = """
import sys, time, torch.distributed
store = torch.distributed.TCPStore(
    "127.0.0.1", int(sys.argv[1]), None, True, wait_for_workers=False
)
print(flush=True)
time.sleep(86400)
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One job. ``kill_on_failure``: stop the others when a rank fails, as torchrun does."""

    program: str
    arguments: list[str]
    world_size: int
    directory: str
    log: str
    environment: dict[str, str] = field(default_factory=dict)
    kill_on_failure: bool = True
    skip_ranks: list[int] = field(default_factory=list)
    """Ranks whose process is never started."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank has ended; ``code`` is negative for a signal, as in `subprocess`."""

    rank: int
    code: int


class Jobs:
    """One job after another; whoever runs one calls `wait` until it is over, and then `end`."""

    def __init__(self, server: ForkServer, base: dict[str, str], modules: tuple[str, ...]) -> None:
        self._server, self._base, self._modules = server, base, modules
        self._job: Job | None = None
        self._ranks: dict[int, ForkedProcess] = {}
        self._store: ForkedProcess | None = None
        self._failed_s: float | None = None

    def run(self, job: Job) -> None:
        """Start a job."""
        self._job, self._failed_s = job, None
        port, run_id = free_port(), uuid.uuid4().hex[:12]
        self._store = self._server.start(
            [sys.executable, "-c", _STORE, str(port)], self._base, self._modules
        )
        assert self._store.output is not None
        if not self._store.output.readline():  # until it listens
            raise RuntimeError("the job's store could not be started")
        with open(job.log, "ab") as log:
            for rank in range(job.world_size):
                if rank in job.skip_ranks:
                    continue
                self._ranks[rank] = self._server.start(
                    [sys.executable, job.program, *job.arguments],
                    self._base | _variables(job, rank, port, run_id) | job.environment,
                    log=log,
                )

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank that has not ended."""
        os.kill(self._ranks[rank].pid, number)

    def wait(self, timeout_s: float) -> RankEnd | None:
        """The next rank that has ended, or None when the time is over."""
        until_s = time.monotonic() + timeout_s
        while True:
            for rank, process in self._ranks.items():
                code = process.poll()
                if code is not None:
                    del self._ranks[rank]
                    self._stop_others(code)
                    return RankEnd(rank, code)
            if self._failed_s is not None and time.monotonic() - self._failed_s > TERM_GRACE_S:
                self._signal_all(signal.SIGKILL)
            if time.monotonic() >= until_s:
                return None
            time.sleep(POLL_S)

    def end(self) -> None:
        """End every rank of the running job, whatever state it is in."""
        self._signal_all(signal.SIGKILL)
        for process in self._ranks.values():
            process.wait(30.0)
        self._ranks.clear()
        if self._store is not None:
            os.kill(self._store.pid, signal.SIGKILL)
            self._store.communicate(30.0)
            self._store = None

    def _stop_others(self, code: int) -> None:
        """After the first failure, as torchrun does."""
        assert self._job is not None
        if code and self._job.kill_on_failure and self._failed_s is None:
            self._failed_s = time.monotonic()
            self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for process in self._ranks.values():
            os.kill(process.pid, number)


@contextmanager
def job_server(modules: tuple[str, ...] = ()) -> Iterator[Jobs]:
    """A server for jobs whose ranks share these modules; at its end all that it forked is gone."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("HANGSCOPE")}
    base.update(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    server = ForkServer(base)
    try:
        yield Jobs(server, base, modules)
    finally:
        server.end()


def _variables(job: Job, rank: int, port: int, run_id: str) -> dict[str, str]:
    """What torchrun would set."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(job.world_size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "HANGSCOPE_DIR": job.directory,
    }
