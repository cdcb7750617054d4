"""Reads many or large files in worker processes: faster, and no file can harm the main process.

A worker loads one file at a time, keeps only its columns and sends those. Its memory is limited by
itself and its time by the parent, so a hostile file costs no more than a warning. Workers are
forked where that is safe (a single thread), else started as new interpreters.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from hangscope.ring import portable, process_identity
from hangscope.trace.loading.budget import Budget
from hangscope.trace.loading.one_file import Loaded, Task, read_task
from hangscope.trace.loading.shared_values import Receiver, Sender
from hangscope.trace.model import Unread
from hangscope.trace.processes.signals import kill_child

MAX_WORKERS = 16
SECONDS_FLOOR = 8.0
_SECONDS_PER_MB = 2.0
_STARVATION_FACTOR = 5
"""Wall time may exceed the time limit by this factor while other processes use the CPUs."""
_PROGRESS_INTERVAL_S = 0.5
"""How often progress is reported while no result arrives."""


@dataclass(slots=True)
class _Worker:
    pid: int
    connection: Connection[object, object]
    output: Connection[object, object]
    process: subprocess.Popen[bytes] | None = None
    task: Task | None = None
    began: float = 0.0
    """When its task was assigned, and when to check on it, by the monotonic clock."""
    deadline: float = 0.0
    used_s: float = 0.0
    """CPU time it had used by then."""
    shared: Receiver = field(default_factory=Receiver)


def cores() -> int:
    """The number of CPUs this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return os.cpu_count() or 1


def read_in_workers(
    tasks: Sequence[Task],
    budget: Budget,
    workers: int | None = None,
    *,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[Loaded]:
    """Read files in parallel; yields one result per task, as they become ready.

    Files that are not begun when the budget's time is over are left out. ``waiting`` is called
    periodically while no result arrives.
    """
    count = max(1, min(workers or min(cores(), MAX_WORKERS), len(tasks)))
    queue = deque(sorted(tasks, key=lambda t: -t.size))
    limit = budget.memory_of_reader(count, max(t.size for t in tasks))
    pool: list[_Worker] = []
    try:
        for _ in range(count):
            try:
                pool.append(_start(limit, pool))
            except OSError:  # no process can be started: read here, scanning pickles first
                if not pool:
                    yield from map(read_task, tasks)
                    return
                break
            _assign(pool[-1], queue)
        while any(w.task is not None for w in pool):
            arrived = list(_collect(pool, queue, limit))
            yield from arrived
            if not arrived:
                waiting()
            if queue and budget.is_over:
                yield Loaded(unread=tuple(Unread(t.shown, budget.over_text) for t in queue))
                queue.clear()
    finally:
        for worker in pool:
            _stop(worker)


def _assign(worker: _Worker, queue: deque[Task]) -> None:
    worker.task = queue.popleft() if queue else None
    if worker.task is not None:
        worker.began = time.monotonic()
        worker.deadline = worker.began + _seconds_for(worker.task)
        worker.used_s = _cpu_s(worker.pid)
        worker.connection.send_bytes(pickle.dumps(worker.task))


def _seconds_for(task: Task) -> float:
    return SECONDS_FLOOR + _SECONDS_PER_MB * task.size / (1 << 20)


def _is_too_slow(worker: _Worker, task: Task) -> bool:
    """Whether a file takes too long to read; if not, extends the worker's deadline.

    CPU time counts: on a busy machine, a worker gets only a fraction of each second.
    """
    now, seconds = time.monotonic(), _seconds_for(task)
    left_s = seconds - (_cpu_s(worker.pid) - worker.used_s)
    if now - worker.began >= seconds * _STARVATION_FACTOR or left_s < seconds / 10:
        return True
    worker.deadline = now + left_s
    return False


def _cpu_s(pid: int) -> float:
    """CPU time of a process in seconds; zero if unavailable."""
    fields = process_identity.stat_fields(pid)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / portable.TICKS_PER_S


def _collect(pool: list[_Worker], queue: deque[Task], limit: int) -> Iterator[Loaded]:
    """Yield results that have arrived; replace workers that died or took too long."""
    busy = [w for w in pool if w.task is not None]
    patience = max(min(w.deadline for w in busy) - time.monotonic(), 0.0)
    patience = min(patience, _PROGRESS_INTERVAL_S)
    ready = wait([w.output for w in busy], patience)
    for worker in busy:
        task = worker.task
        assert task is not None
        problem = ""
        if worker.output in ready:
            try:
                answer = worker.output.recv_bytes()
            except (EOFError, OSError):
                problem = "needs more memory than there is; its reader was killed"
            else:
                _assign(worker, queue)  # first, so that it reads on while we unpack its answer
                # Safe to unpickle: the worker built this answer itself.
                packed, unread = pickle.loads(answer)
                yield Loaded(worker.shared.unpack(packed), unread)
                continue
        elif time.monotonic() >= worker.deadline and _is_too_slow(worker, task):
            problem = "takes too long to read; given up"
        if problem:
            _stop(worker)
            others = [w for w in pool if w is not worker]
            pool[pool.index(worker)] = fresh = _start(limit, others)
            _assign(fresh, queue)
            yield Loaded(unread=(Unread(task.shown, problem),))


def _start(limit: int, others: Sequence[_Worker]) -> _Worker:
    if sys.platform == "win32":
        raise OSError("no connection leads to a process here")
    if threading.active_count() == 1 and sys.platform == "linux":
        return _fork(limit, others)
    return _spawn(limit)


def _fork(limit: int, others: Sequence[_Worker]) -> _Worker:
    """Cheap, as everything is already imported. Only safe while no other thread holds a lock."""
    from_parent, to_child = os.pipe()
    from_child, to_parent = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(to_child)
            os.close(from_child)
            for other in others:  # else they would not notice when the parent goes away
                other.connection.close()
                other.output.close()
            serve(
                Connection(from_parent, writable=False),
                Connection(to_parent, readable=False),
                limit,
            )
            status = 0
        except BaseException:  # a forked child must never return to the caller
            pass
        os._exit(status)
    os.close(from_parent)
    os.close(to_parent)
    return _Worker(
        pid, Connection(to_child, readable=False), Connection(from_child, writable=False)
    )


def _spawn(limit: int) -> _Worker:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(limit)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return _Worker(
        process.pid,
        Connection(os.dup(process.stdin.fileno()), readable=False),
        Connection(os.dup(process.stdout.fileno()), writable=False),
        process,
    )


_PROGRAM = """\
import os, sys
from multiprocessing.connection import Connection
from hangscope.trace.loading.parallel import serve
out = os.dup(1)
os.dup2(2, 1)
serve(Connection(0, writable=False), Connection(out, readable=False), int(sys.argv[1]))
os._exit(0)
"""


def serve(
    tasks: Connection[object, object], answers: Connection[object, object], limit: int
) -> None:
    """Run a worker: read each task's file and send the result, until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with open(
        os.devnull, "w", encoding="utf-8"
    ) as nowhere:  # C libraries print errors about damaged files
        os.dup2(nowhere.fileno(), 2)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        with open("/proc/self/statm", encoding="utf-8") as file:
            limit += int(file.read().split()[0]) * resource.getpagesize()  # already mapped
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    shared = Sender()
    while True:
        try:
            task = pickle.loads(tasks.recv_bytes())
        except EOFError:
            return
        loaded = read_task(task, isolated=True)
        answer = shared.pack(loaded.fragments), loaded.unread
        answers.send_bytes(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))


def _stop(worker: _Worker) -> None:
    with contextlib.suppress(OSError):
        worker.connection.close()
    with contextlib.suppress(OSError):
        worker.output.close()
    if worker.task is not None:
        kill_child(worker.pid)
    if worker.process is not None:
        for pipe in (worker.process.stdin, worker.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        worker.process.wait()
    else:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(worker.pid, 0)
