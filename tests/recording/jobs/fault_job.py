"""Makes every function of the recorder fail in turn, under a small job that must not notice.

Arguments: names of functions, or none for all. Prints one JSON line: for each function, whether it
was called, whether the job's result stayed what it is, and the lines that were written to stderr.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import pkgutil
import sys
import tempfile
import threading
import time
import traceback
import types
from datetime import timedelta

import torch
import torch.distributed as dist

import hangscope
import hangscope.recording
from hangscope.recording import api, limits, warn_once, watcher
from hangscope.recording.compiled import callbacks
from hangscope.ring import process_identity, writer

watcher.POLL_INTERVAL_S = 0.004
watcher.HEARTBEAT_INTERVAL_S = 0.004
_NOT_RECORDED = {
    # Not part of a recording: the launcher's side, or only there for tests.
    "enable", "_is_rank_now", "_is_multiprocessing_child", "_is_launcher", "is_launch",
    "start_on_init",
    "_argument", "extend_history", "dump", "stop", "start", "warn_once",
    "current_session", "phase", "record", "__repr__", "_start", "settings_from_process",
}  # fmt: skip
_MAKERS = {
    "beginner", "issuer", "_writer", "key_reader", "shape_reader", "blocking_flag_reader",
    "learner", "failer",
}  # fmt: skip
"""What these make is called for every operation."""


class Finished(dist.Work):
    """The Work of a backend that is written in Python."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


class Alone(dist.ProcessGroup):
    """A process group that is written in Python, of one member."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)

    def allreduce(self, tensors: list[torch.Tensor], opts: object = None) -> Finished:
        return Finished()

    def getBackendName(self) -> str:  # noqa: N802 torch's name
        return "alone"


dist.Backend.register_backend("alone", Alone, devices=["cpu"])


def small_job() -> list[object]:
    """A bit of everything; what it returns must not depend on the recorder."""
    results: list[object] = []
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    value = torch.arange(4.0)
    dist.all_reduce(value)
    dist.broadcast(value, 0)
    results.append(value.tolist())
    group = dist.new_group([0])
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    dist.reduce_scatter_tensor(value, value.clone())
    alone = dist.new_group([0], backend="alone")
    results.append(type(dist.all_reduce(value, group=alone, async_op=True)).__name__)
    dist.all_reduce(value, group=alone)
    out = [torch.empty(4)]
    dist.all_gather(out, value)
    results.append(out[0].tolist())
    try:
        dist.broadcast(value, 5)
    except Exception as error:
        results.append(type(error).__name__)
    with hangscope.phase("checkpoint", "mine"):
        results.append("phase")
    with hangscope.record("pynccl:all_reduce", value, group="comm", ranks=[0]):
        results.append("record")
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(value)
    many = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(limits.DRAIN_AT + 2)]
    results.append(len([work.wait() for work in many]))
    try:
        raise KeyError("handled")
    except KeyError:
        dist.all_reduce(value)
    try:
        dist.group.WORLD.send([value], 0, 0)
    except Exception as error:
        results.append(type(error).__name__)
    work = dist.group.WORLD.recv_anysource([torch.ones(1)], 7)
    try:
        work.wait(timedelta(milliseconds=1))
    except Exception as error:
        results.append(type(error).__name__)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    net(torch.ones(1, 2)).sum().backward()  # its all_reduce comes from a thread of C++
    results.append(net.module.weight.grad.tolist())
    store.set("key", "value")
    results.append(store.get("key").decode())

    def fails() -> None:
        raise KeyError("mine")

    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    try:
        sys.exit(0)
    except SystemExit as error:
        results.append(error.code)
    sys.excepthook(ValueError, ValueError("shown"), None)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    for watching in watchers():
        await_two_turns(watching)
    dist.destroy_process_group()
    results.append(dist.is_initialized())
    # The reducer of `net` is the last to hold its group. Its end joins Gloo's thread without
    # releasing the GIL, for which that thread waits if it is just freeing a tensor (torch 2.13).
    time.sleep(0.02)
    return results


class Turns:
    """The watcher's clock. It looks at it once a turn, between its two halves."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)

    def monotonic(self) -> float:
        """Seconds, as ``time.monotonic`` gives them."""
        self._begun.release()
        return time.monotonic()

    def await_one(self) -> bool:
        """Wait until one is begun that was not waited for; for a while, as none may come."""
        return self._begun.acquire(timeout=0.01)


def watchers() -> list[watcher.Watcher]:
    """The watchers that run."""
    return [thread for thread in threading.enumerate() if isinstance(thread, watcher.Watcher)]


def await_two_turns(watching: watcher.Watcher) -> None:
    """Return once the watcher has turned twice, or has given up."""
    watcher.time = turns = Turns()
    begun = 0
    while begun < 3 and watching.is_alive():  # the third begins behind the second's end
        begun += turns.await_one()


def end(watching: watcher.Watcher) -> None:
    """Stop a watcher, also one that cannot be asked to, and wait for its last words."""
    watching._stop_event.set()
    watching.join()


def functions() -> list[tuple[object, str]]:
    """(owner, name) of every function and method of the recorder and of the ring's writer."""
    modules = [
        importlib.import_module(f"hangscope.recording.{info.name}")
        for info in pkgutil.iter_modules(hangscope.recording.__path__)
    ] + [callbacks, writer, process_identity]
    found: list[tuple[object, str]] = []
    for module in modules:
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__ or name in _NOT_RECORDED:
                continue
            if inspect.isfunction(value):
                found.append((module, name))
            elif inspect.isclass(value):
                found += [
                    (value, attribute)
                    for attribute, member in vars(value).items()
                    if isinstance(member, (types.FunctionType, classmethod, property))
                    and attribute not in _NOT_RECORDED
                    and (not attribute.startswith("__") or attribute == "__init__")
                    and not (attribute == "__init__" and hasattr(value, "__dataclass_fields__"))
                    and not issubclass(value, tuple)
                ]
    return found


@contextlib.contextmanager
def replaced(owner: object, name: str, replacement: object):  # type: ignore[no-untyped-def]
    """Another function in the place of one, wherever it was imported to."""
    original = vars(owner)[name]
    places = [(owner, name)]
    if inspect.ismodule(owner):
        places += [
            (module, name)
            for module_name, module in list(sys.modules.items())
            if module_name.startswith("hangscope.") and vars(module).get(name) is original
        ]
    for place, attribute in places:
        setattr(place, attribute, replacement)
    try:
        yield
    finally:
        for place, attribute in places:
            setattr(place, attribute, original)


@contextlib.contextmanager
def failing(owner: object, name: str):  # type: ignore[no-untyped-def]
    """Replace a function by one that raises."""
    original = vars(owner)[name]
    calls = [0]

    def fail(*args: object, **kwargs: object) -> object:
        calls[0] += 1
        raise RuntimeError(f"injected into {name}")

    if isinstance(original, types.FunctionType):
        functools.update_wrapper(fail, original)
        replacement: object = fail
    elif isinstance(original, property):
        replacement = property(fail)
    else:
        replacement = classmethod(fail)
    with replaced(owner, name, replacement):
        yield calls


@contextlib.contextmanager
def product_failing(owner: object, name: str):  # type: ignore[no-untyped-def]
    """Replace a function that makes one by one whose product raises."""
    original = vars(owner)[name]
    calls = [0]

    def fail(*args: object, **kwargs: object) -> object:
        calls[0] += 1
        raise RuntimeError(f"injected into what {name} makes")

    def make(*args: object, **kwargs: object) -> object:
        original(*args, **kwargs)
        return fail

    with replaced(owner, name, make):
        yield calls


HOOK = [""]


def one(owner: object, name: str, fault=failing) -> dict[str, object]:  # type: ignore[no-untyped-def]
    warn_once._said.clear()
    err = io.StringIO()
    os.environ["HANGSCOPE_DIR"] = tempfile.mkdtemp(dir=os.environ["RESULTS"])
    real_hook, real_exit = sys.excepthook, sys.exit
    with contextlib.redirect_stderr(err), fault(owner, name) as calls:
        try:
            api.start()
            session = api.current_session()
            HOOK[0] = type(session.hook).__name__ if session is not None else HOOK[0]
            result: object = small_job()
            api.stop()
        except BaseException as error:  # the job must never see it
            result = f"{type(error).__name__}: {error}"
            if dist.is_initialized():
                dist.destroy_process_group()
        for watching in watchers():
            end(watching)
    api._session = None
    sys.excepthook = real_hook  # torch puts one of its own over it at every init
    hooks_back = sys.exit is real_exit
    said = [line for line in err.getvalue().splitlines() if line.startswith("[hangscope]")]
    return {"calls": calls[0], "result": result, "said": said, "hooks_back": hooks_back}


def _quiet(kind, value, trace):  # type: ignore[no-untyped-def]
    if not isinstance(value, ValueError):
        traceback.print_exception(kind, value, trace)


def main() -> None:
    threading.excepthook = lambda args: None
    sys.excepthook = _quiet
    os.environ |= {"HANGSCOPE_MONITOR": "0", "RANK": "0", "WORLD_SIZE": "1"}
    expected = small_job()
    outcome = {}
    wanted = frozenset(sys.argv[1:])
    for owner, name in functions():
        if wanted and name not in wanted:
            continue
        called = f"{getattr(owner, '__name__', owner)}.{name}"
        outcome[called] = one(owner, name)
        if name in _MAKERS:
            outcome[f"what {called} makes"] = one(owner, name, product_failing)
    json.dump({"expected": expected, "outcome": outcome, "hook": HOOK[0]}, sys.stdout)


main()
