"""Starts Python programs as forks of one process that has imported torch.

Most of what a short job costs is the import of torch, once per rank. The ranks are processes of
their own all the same, with their own environment, session, start time and random numbers, and a
program is run as ``__main__``, at the top level. ``import torch`` in it takes no time, and does
what it does in a new process: it starts HangScope.

What a process is before it runs is not its own: ``/proc/<pid>/environ`` and ``cmdline`` are the
server's, and what a library reads from the environment when it is loaded is not read again. See
`is_forkable`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any

_READ_WHEN_LOADED = ("PYTHON", "LD_", "TORCH_", "OMP_", "MKL_", "GLIBC_", "MALLOC_")
_READ_LATER = ("TORCH_FR", "TORCH_NCCL", "TORCH_GLOO")
_POLL_S = 0.02
_MESSAGE_BYTES = 1 << 17
_START_S = 120.0
"""For the import of torch and of more on a busy machine."""
_END_S = 20.0
_SHORTEST_S = 0.001


def is_forkable(command: Sequence[str], env: Mapping[str, str], plain: Mapping[str, str]) -> bool:
    """Whether a command is a program that a fork of a server in the ``plain`` environment can run.

    It is not if the interpreter or a library would see other variables when it is loaded.
    """
    if command[0] != sys.executable or not (command[1] == "-c" or command[1].endswith(".py")):
        return False
    return read_when_loaded(env) == read_when_loaded(plain)


def read_when_loaded(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that count when the interpreter and torch are loaded, and not later."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(_READ_WHEN_LOADED) and not name.startswith(_READ_LATER)
    }


class ForkedProcess:
    """A running fork: what is used here of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int, output: IO[bytes] | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.output = output
        """What it writes; None if that goes into a log."""
        self._server = server
        self._read: list[bytes] = []

    def communicate(self, timeout: float) -> tuple[str, None]:
        """All output, and the return code afterwards; `subprocess.TimeoutExpired` if too late."""
        deadline_s = time.monotonic() + timeout
        assert self.output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            while True:
                if not selector.select(deadline_s - time.monotonic()):
                    raise subprocess.TimeoutExpired("a forked process", timeout)
                chunk = os.read(self.output.fileno(), 65536)
                if not chunk:
                    break
                self._read.append(chunk)
        self.output.close()
        self.wait(deadline_s - time.monotonic())
        return b"".join(self._read).decode(errors="replace"), None

    def wait(self, timeout: float) -> int:
        """The return code; `subprocess.TimeoutExpired` if it comes too late."""
        if self.returncode is None:
            self.returncode = self._server.returncode(self.pid, time.monotonic() + timeout)
        return self.returncode

    def poll(self) -> int | None:
        """The return code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None


class ForkServer:
    """The client's side of a process that forks.

    ``environment`` is what the interpreter and torch are loaded in. At its end, or that of this
    process, all that it has forked is killed.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            code = f"from tools.forkserver import serve\nexec(*serve({theirs.fileno()}))"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[1],
                start_new_session=True,
            )
        self._codes: dict[int, int] = {}
        atexit.register(self.end)

    def end(self) -> None:
        """Kill what still runs.

        The server is told: a fork of this process (a worker that reads files) may hold the socket.
        """
        atexit.unregister(self.end)
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"end": True}).encode())
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        modules: Iterable[str] = (),
        log: IO[bytes] | None = None,
    ) -> ForkedProcess:
        """Run ``[sys.executable, ...]`` in a fork, with exactly this environment.

        ``modules`` are imported before the fork, so that all share them. The output goes into the
        log, if there is one.
        """
        reader, writer = os.pipe() if log is None else (-1, log.fileno())
        plan = {
            "command": list(command[1:]), "environment": dict(environment),
            "modules": list(modules), "folder": os.getcwd(),
        }  # fmt: skip
        socket.send_fds(self._socket, [json.dumps(plan).encode()], [writer])
        if log is None:
            os.close(writer)
        while True:
            told = self._next(time.monotonic() + _START_S)
            if "started" in told:
                output = os.fdopen(reader, "rb") if log is None else None
                return ForkedProcess(self, told["started"], output)

    def returncode(self, pid: int, deadline_s: float) -> int:
        """Wait for the end of a fork, and collect it: until then it is a zombie."""
        while pid not in self._codes:
            self._next(deadline_s)
        self._socket.send(json.dumps({"collect": pid}).encode())
        return self._codes.pop(pid)

    def _next(self, deadline_s: float) -> dict[str, int]:
        self._socket.settimeout(max(_SHORTEST_S, deadline_s - time.monotonic()))
        try:
            message = self._socket.recv(_MESSAGE_BYTES)
        except TimeoutError:
            raise subprocess.TimeoutExpired("a forked process", 0) from None
        if not message:
            raise RuntimeError("the fork server has ended")
        told: dict[str, int] = json.loads(message)
        if "ended" in told:
            self._codes[told["ended"]] = told["code"]
        return told


# -- the server's side -----------------------------------------------------------------------


def serve(descriptor: int) -> tuple[CodeType, dict[str, Any]]:
    """Fork until the client has gone; return only in forks, with what they have to execute."""
    import torch.distributed

    assert torch.distributed.is_available()
    _freeze()
    channel = socket.socket(fileno=descriptor)
    running: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            if selector.select(_POLL_S if running else None):
                message, files, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
                plan: dict[str, Any] = json.loads(message) if message else {"end": True}
                if "end" in plan:
                    _end(running)
                if "collect" in plan:
                    os.waitpid(plan["collect"], 0)
                    continue
                if new := [name for name in plan["modules"] if name not in sys.modules]:
                    for module in new:
                        importlib.import_module(module)
                    _freeze()
                pid = os.fork()
                if not pid:
                    break
                os.close(files[0])
                running.add(pid)
                channel.send(json.dumps({"started": pid}).encode())
            for pid in list(running):
                end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if end is not None:
                    running.remove(pid)
                    code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                    channel.send(json.dumps({"ended": pid, "code": code}).encode())
    channel.close()
    return _become(plan, files[0])


def _freeze() -> None:
    """A collection in one fork copies no pages of what all share."""
    gc.collect()
    gc.freeze()


def _end(running: set[int]) -> None:
    for pid in running:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _become(plan: dict[str, Any], output: int) -> tuple[CodeType, dict[str, Any]]:
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(plan["folder"])
    os.environ.clear()
    os.environ.update(plan["environment"])
    words = plan["command"]
    sys.orig_argv[:] = [sys.executable, *words]
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    if words[0] == "-c":
        sys.argv[:], sys.path[0] = words[:1] + words[2:], ""
        code = compile(words[1], "<string>", "exec")
    else:
        sys.argv[:], sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
        main["__file__"] = words[0]
        with open(words[0], "rb") as file:
            code = compile(file.read(), words[0], "exec")
    _forget_torch()
    return code, main


def _forget_torch() -> None:
    """Let the next ``import torch`` find the module that there is, and do what loading it does."""
    sys.meta_path.insert(0, _Torch(sys.modules.pop("torch")))


class _Torch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._spec = torch.__spec__

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == "torch" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        sys.meta_path.remove(self)
        return self._torch

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        from hangscope.autoload import autoload

        autoload()
