"""Reads many or large files in worker processes: faster, and no file can harm the main process.

The kernel limits the memory and the time of a worker, so a hostile file costs no more than a
warning. What ranks have in common (lists of ranks, stacks, signatures) are the same objects in a
worker, and pickle writes each object once for all files of a piece of work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from hangscope.trace.loading.budget import Budget
from hangscope.trace.loading.one_file import Loaded, Task, read_task
from hangscope.trace.model import Unread

MAX_WORKERS = 16
SECONDS_FLOOR = 8.0
_SECONDS_PER_MB = 2.0
_STARVATION_FACTOR = 5
"""Wall time may exceed the time limit by this factor while other processes use the CPUs."""
_PROGRESS_INTERVAL_S = 0.5
"""How often progress is reported while no result arrives."""
_MOST_FILES, _MOST_BYTES = 64, 32 << 20
"""Of one piece of work."""
_PIECES_EACH = 4
"""Pieces for each worker, if there are enough files: some take longer than others."""
_ENDED = "takes too long to read, or more memory than there is; given up"
_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG``, see prctl(2)."""

Waiting = Callable[[], None]


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
    waiting: Waiting = lambda: None,
) -> Iterator[Loaded]:
    """Read files in parallel; yields one result per task, as they become ready.

    Files that are not begun when the budget's time is over are left out. ``waiting`` is called
    periodically while no result arrives. Where a system has no limits for processes, files are
    read here, and pickles scanned first.
    """
    if sys.platform != "linux":
        yield from map(read_task, tasks)
    elif threading.active_count() > 1 or multiprocessing.current_process().daemon:
        yield from _read_by_another_process(tasks, budget, workers, waiting)
    else:
        yield from _read_in_pools(tasks, budget, workers, waiting)


def _read_in_pools(
    tasks: Sequence[Task], budget: Budget, workers: int | None, waiting: Waiting
) -> Iterator[Loaded]:
    """Read files in forked workers: cheap, as everything is already imported."""
    count = max(1, min(workers or min(cores(), MAX_WORKERS), len(tasks)))
    limit = budget.memory_of_reader(count, max(task.size for task in tasks))
    ended: list[Task] = []
    yield from _read_in_pool(_pieces(tasks, count), count, limit, budget, waiting, ended)
    # One of these has ended its worker, and thereby the pool: each has one to itself now.
    for task in ended:
        alone: list[Task] = []
        yield from _read_in_pool([[task]], 1, limit, budget, waiting, alone)
        yield from (Loaded(unread=(Unread(task.shown, _ENDED),)) for task in alone)


def _pieces(tasks: Sequence[Task], workers: int) -> list[list[Task]]:
    """Pieces of work of similar size, the largest files first."""
    most = min(_MOST_FILES, max(1, len(tasks) // (workers * _PIECES_EACH)))
    pieces: list[list[Task]] = []
    room = 0
    for task in sorted(tasks, key=lambda t: -t.size):
        if not pieces or len(pieces[-1]) == most or task.size > room:
            pieces.append([])
            room = _MOST_BYTES
        pieces[-1].append(task)
        room -= task.size
    return pieces


def _read_in_pool(
    pieces: Sequence[list[Task]],
    workers: int,
    limit: int,
    budget: Budget,
    waiting: Waiting,
    ended: list[Task],
) -> Iterator[Loaded]:
    """Read pieces of work; ``ended`` receives the files of those that a dying worker has left."""
    others = set(multiprocessing.active_children())
    try:
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin, (limit,))
        left = {pool.submit(_read_piece, piece): piece for piece in pieces}
    except (OSError, NotImplementedError):  # no process, or no semaphore, to be had
        _kill_workers(others)
        yield from (read_task(task) for piece in pieces for task in piece)
        return
    try:
        yield from _results(left, budget, waiting, ended)
    finally:
        if left:  # whoever reads has been interrupted
            _kill_workers(others)
        pool.shutdown(cancel_futures=True)


def _kill_workers(others: set[BaseProcess]) -> None:
    """Kill the children of this process that were not there before the workers."""
    for worker in set(multiprocessing.active_children()) - others:
        worker.kill()


def _results(
    left: dict[Future[bytes], list[Task]], budget: Budget, waiting: Waiting, ended: list[Task]
) -> Iterator[Loaded]:
    while left:
        done, _ = wait(left, _PROGRESS_INTERVAL_S, FIRST_COMPLETED)
        for future in done:
            piece = left.pop(future)
            try:
                # Safe to unpickle: a worker built this answer itself.
                yield from pickle.loads(future.result())
            except (BrokenProcessPool, MemoryError):
                ended += piece
        if not done:
            waiting()
        for future in [f for f in left if budget.is_over and f.cancel()]:
            for task in left.pop(future):
                yield Loaded(unread=(Unread(task.shown, budget.over_text),))


def _begin(limit: int) -> None:
    """Set up a worker, whose memory is limited to so many bytes more than it has."""
    import ctypes
    import resource

    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # C libraries print errors about damaged files
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm", encoding="utf-8") as file:
            limit += int(file.read().split()[0]) * resource.getpagesize()  # already mapped
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _read_piece(tasks: Sequence[Task]) -> bytes:
    """Read files in a worker; returns the pickled results."""
    found = []
    for task in tasks:
        _limit_time(SECONDS_FLOOR + _SECONDS_PER_MB * task.size / (1 << 20))
        found.append(read_task(task, isolated=True))
    signal.setitimer(signal.ITIMER_REAL, 0)  # waiting for the next piece is no work
    return pickle.dumps(found, pickle.HIGHEST_PROTOCOL)


def _limit_time(seconds: float) -> None:
    """Have the kernel end this process unless it is through in time.

    CPU time counts: on a busy machine, a worker gets only a fraction of each second.
    """
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))
    signal.setitimer(signal.ITIMER_REAL, seconds * _STARVATION_FACTOR)


def _read_by_another_process(
    tasks: Sequence[Task], budget: Budget, workers: int | None, waiting: Waiting
) -> Iterator[Loaded]:
    """Have a new interpreter read files in its workers: while other threads may hold locks here, it
    is not safe to fork.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        left = len(tasks)
        try:
            pickle.dump((tasks, budget, workers), process.stdin)
            process.stdin.close()
            with Connection(os.dup(process.stdout.fileno()), writable=False) as answers:
                while left:
                    while not answers.poll(_PROGRESS_INTERVAL_S):
                        waiting()
                    loaded: Loaded = answers.recv()
                    left -= 1
                    yield loaded
        except (EOFError, BrokenPipeError):
            yield Loaded(unread=(Unread(f"{left} of {len(tasks)} files", _ENDED),))
        finally:
            process.kill()


_PROGRAM = """\
import os, pickle, sys
from multiprocessing.connection import Connection
from hangscope.trace.loading.parallel import read_in_workers
answers = Connection(os.dup(1), readable=False)
os.dup2(2, 1)
for loaded in read_in_workers(*pickle.load(sys.stdin.buffer)):
    answers.send(loaded)
"""
