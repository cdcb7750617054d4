"""Starts the ranks of many jobs from one process that has imported torch once.

Importing torch takes seconds of CPU time per rank; forking a process that has already imported it
takes milliseconds. Each rank is a real process with its own pid, environment, log and exit status.
It runs the program as ``__main__`` and starts HangScope in the way that ``import torch`` does. The
server behaves like torchrun: it hosts the store, and when a rank fails, it stops the others with
SIGTERM.

The protocol is JSON lines. On stdin: ``{"cmd": "run", ...}`` (see `Job`), ``{"cmd": "signal",
"rank": 1, "signal": 9}`` and ``{"cmd": "end"}``. On stdout: ``{"event": "started", "pids":
[...]}``, ``{"event": "exit", "rank": 1, "code": null, "signal": 9}`` and ``{"event": "ended"}``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.ports import free_port

TERM_GRACE_S = 5.0
POLL_S = 0.05


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
    ranks_per_node: int = 0
    """0: all on one node. Otherwise nodes differ only in GROUP_RANK."""
    skip_ranks: list[int] = field(default_factory=list)
    """Ranks whose process is never started."""


class Server:
    """The client's side: one fork server process.

    Use it as a context manager; at its end, all processes it started are gone.
    """

    def __init__(self, preload: tuple[str, ...] = ("torch.distributed",)) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HANGSCOPE")}
        environment.update(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self._next("ready", 120)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def run(self, job: Job) -> list[int]:
        """Start a job; returns the ranks' pids (0 for ranks that are not started)."""
        fields = {name: getattr(job, name) for name in Job.__slots__}
        self._send({"cmd": "run", **fields})
        started = self._next("started", 30)
        return [int(pid) for pid in started["pids"]]

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank."""
        self._send({"cmd": "signal", "rank": rank, "signal": int(number)})

    def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event, or None when the time is over."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            return None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the fork server has ended")
        event: dict[str, Any] = json.loads(line)
        return event

    def end(self) -> None:
        """End every rank of the running job, whatever state it is in."""
        self._send({"cmd": "end"})
        self._next("ended", 30)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _next(self, kind: str, timeout_s: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            event = self.wait(max(0.0, deadline_s - time.monotonic()))
            if event is not None and event["event"] == kind:
                return event
        raise TimeoutError(f"the fork server did not say {kind!r} within {timeout_s:.0f} s")


# -- the server's side -----------------------------------------------------------------------


def _say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class _Server:
    """Forks the ranks of one job after another, and reports how they end."""

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}
        self._job: dict[str, Any] = {}
        self._store = 0
        """Pid of the process that hosts the store; 0 if none."""
        self._failed_at_s = 0.0
        """When the first rank failed, after which the others are stopped; 0 if none has."""

    def serve(self) -> tuple[dict[str, Any], int] | None:
        """Serve until stdin closes (None); in a forked rank returns (job, rank) at once."""
        buffer = b""
        while True:
            ready, _, _ = select.select([0], [], [], POLL_S if self._pids else 1.0)
            if ready:
                chunk = os.read(0, 65536)
                if not chunk:
                    self._end()
                    return None
                buffer += chunk
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                forked = self._obey(json.loads(line))
                if forked is not None:
                    return self._job, forked
            self._collect()
            self._end_after_a_failure()

    def _obey(self, message: dict[str, Any]) -> int | None:
        """Execute a command; in a forked rank returns its number."""
        if message["cmd"] == "run":
            return self._run(message)
        if message["cmd"] == "signal":
            os.kill(self._pids[message["rank"]], message["signal"])
        elif message["cmd"] == "end":
            self._end()
            _say(event="ended")
        return None

    def _run(self, job: dict[str, Any]) -> int | None:
        self._job, self._failed_at_s = job, 0.0
        job["port"] = free_port()
        job["run_id"] = uuid.uuid4().hex[:12]
        self._store = _fork_store(job["port"])
        for rank in range(job["world_size"]):
            if rank in job["skip_ranks"]:
                continue
            pid = os.fork()
            if pid == 0:
                return rank
            self._pids[rank] = pid
        _say(event="started", pids=[self._pids.get(r, 0) for r in range(job["world_size"])])
        return None

    def _collect(self) -> None:
        """Report ranks that have ended; after the first failure, stop the others like torchrun."""
        for rank, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del self._pids[rank]
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            _say(event="exit", rank=rank, code=code, signal=number)
            if code != 0 and not self._failed_at_s and self._job["kill_on_failure"]:
                self._failed_at_s = time.monotonic()
                for other in self._pids.values():
                    os.kill(other, signal.SIGTERM)

    def _end_after_a_failure(self) -> None:
        if self._failed_at_s and time.monotonic() - self._failed_at_s > TERM_GRACE_S:
            for other in self._pids.values():
                os.kill(other, signal.SIGKILL)

    def _end(self) -> None:
        _kill([*self._pids.values(), self._store])
        self._pids.clear()
        self._store = 0


def _kill(pids: list[int]) -> None:
    for pid in pids:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork_store(port: int) -> int:
    """Fork a process that hosts the store, as torchrun's agent does."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        os.read(reader, 1)  # wait until it listens
        os.close(reader)
        return pid
    os.close(0)
    import torch.distributed as dist

    keep = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, None, True, wait_for_workers=False
    )
    os.write(writer, b"x")
    while keep is not None:
        time.sleep(3600)
    raise AssertionError


def _become(job: dict[str, Any], rank: int) -> None:
    """Turn a fresh fork into rank ``rank`` of ``job``; the program runs after this returns."""
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    world = job["world_size"]
    node = job["ranks_per_node"] or world
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank % node),
        LOCAL_WORLD_SIZE=str(node),
        GROUP_RANK=str(rank // node),
        GROUP_WORLD_SIZE=str(-(-world // node)),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(job["port"]),
        TORCHELASTIC_RUN_ID=job["run_id"],
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_USE_AGENT_STORE="True",
        HANGSCOPE_DIR=job["directory"],
    )
    os.environ.update(job["environment"])
    sys.argv[:] = [job["program"], *job["arguments"]]
    sys.path[0] = str(Path(job["program"]).resolve().parent)
    from hangscope.autoload import autoload

    autoload()


if __name__ == "__main__":
    import gc
    import importlib

    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # otherwise a collection in a rank would touch, and so copy, the server's pages
    _say(event="ready")
    task = _Server().serve()
    if task is not None:
        _become(*task)
        # Run at top level, so that exceptions and exits end the process as they end a script.
        import runpy

        runpy.run_path(task[0]["program"], run_name="__main__")
