"""Reads evidence on the workers of a cluster; what they read moves once, as columns.

joblib carries the work, so that Dask and Ray schedule it as any other of theirs. A worker reads
rings and dumps, and what bundles hold of them; the rest (logs, journals) is small, tells more in
company, and is read here. Workers need HangScope, and the files: a shared file system, or URLs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hangscope.trace import formats
from hangscope.trace.files import sniff
from hangscope.trace.loading.budget import Budget, default_budget
from hangscope.trace.loading.one_file import Loaded, Task
from hangscope.trace.loading.reading import NoEngine, read_tasks
from hangscope.trace.loading.remote import brought_here, is_url, urls_below
from hangscope.trace.loading.tasks import listed, opened
from hangscope.trace.loading.temporary import temporary_folder
from hangscope.trace.model import Fragment, Unread

_IN_PART = 16
"""Files that a worker reads in one piece of work: they share what ranks have in common."""
_PATIENCE_S = 20.0
_READ_THERE = (formats.RING, formats.PICKLE, formats.JSON)
_SENT = (*_READ_THERE, *sniff.ARCHIVES)
_RETURN_AS = {"dask": "generator_unordered", "ray": "list"}
INSTALL = {"dask": "pip install 'hangscope[dask]'", "ray": "pip install 'hangscope[ray]'"}


@dataclass(frozen=True, slots=True)
class Part:
    """What a worker sends back."""

    fragments: tuple[Fragment, ...]
    unread: tuple[Unread, ...]
    rest: tuple[tuple[Task, bytes], ...]
    """Files that are to be read in company, and what they hold."""


def read_on(
    engine: str,
    paths: Sequence[str | Path],
    folders: ExitStack,
    budget: Budget,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Loaded], list[Task]]:
    """Read what lies at paths and URLs on an engine's workers.

    Parameters
    ----------
    engine:
        ``dask://HOST:PORT`` (the scheduler's) or ``ray://HOST:PORT`` (the head's client server).
    paths:
        As for `hangscope.trace.load.load_trace`.
    folders:
        Keeps temporary folders until it is closed.
    budget:
        What may be brought here; each worker has its own for what it reads.
    progress:
        Called as ``progress(parts_done, parts)``.

    Returns
    -------
    tuple
        What the workers have read, and the files that are to be read here.

    Raises
    ------
    NoEngine
        If the engine cannot be used.
    NotARun
        If a directory is not a run's.
    """
    unread: list[Unread] = []
    far: list[Task | str] = []
    for path in filter(is_url, paths):
        try:
            far += urls_below(str(path))
        except Exception as error:  # each protocol has exceptions of its own
            unread.append(Unread(str(path), f"{error or type(error).__name__}"[:300]))
    near = brought_here([path for path in paths if not is_url(path)], unread, folders, budget)
    tasks = listed(near, unread, budget)
    theirs = [replace(t, path=os.path.abspath(t.path)) for t in tasks if t.kind.name in _SENT]
    here = [task for task in tasks if task.kind.name not in _SENT]
    loaded = [Loaded(unread=tuple(unread))]
    place = Path(folders.enter_context(temporary_folder()))
    parts = _parts([*far, *theirs])
    with _workers(engine) as answers_to:
        for done, answer in enumerate(answers_to(parts) if parts else ()):
            # Safe to unpickle: a worker built this answer itself.
            part: Part = pickle.loads(zlib.decompress(answer))
            kept, left_out = _kept(part, place / str(done), budget)
            here += kept
            loaded.append(Loaded(part.fragments, (*part.unread, *left_out)))
            if progress is not None:
                progress(done + 1, len(parts))
    return loaded, here


def read_part(items: Sequence[Task | str]) -> bytes:
    """Read files and URLs on a worker; returns a compressed and pickled `Part`."""
    unread: list[Unread] = []
    budget = default_budget()
    with ExitStack() as folders:
        tasks = [item for item in items if isinstance(item, Task)]
        for url in (item for item in items if isinstance(item, str)):
            found = listed(brought_here([url], unread, folders, budget), unread, budget)
            tasks += [replace(task, shown=url, explicit=False) for task in found]
        tasks = opened(tasks, unread, folders, budget)
        read = [task for task in tasks if task.kind.name in _READ_THERE]
        loaded = list(read_tasks(read, None, budget))
        rest = tuple((t, Path(t.path).read_bytes()) for t in tasks if t not in read)
    unread += [one for each in loaded for one in each.unread]
    fragments = tuple(one for each in loaded for one in each.fragments)
    return zlib.compress(pickle.dumps(Part(fragments, tuple(unread), rest), -1), 1)


def _parts(items: Sequence[Task | str]) -> list[Sequence[Task | str]]:
    return [items[first : first + _IN_PART] for first in range(0, len(items), _IN_PART)]


def _kept(part: Part, folder: Path, budget: Budget) -> tuple[list[Task], list[Unread]]:
    """A worker's other files as files of this machine, and what does not fit."""
    tasks, left_out = [], []
    for number, (task, content) in enumerate(part.rest):
        budget.written_bytes -= len(content)
        if why := budget.exhausted_text:
            left_out.append(Unread(task.shown, why))
            continue
        path = folder / str(number) / Path(task.path).name  # a name often tells the rank
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        tasks.append(replace(task, path=str(path)))
    return tasks, left_out


@contextlib.contextmanager
def _workers(engine: str) -> Iterator[Any]:
    """What has `read_part` called for each part, and yields the results as they come."""
    kind, _, address = engine.partition("://")
    with ExitStack() as connection:
        try:
            import joblib

            connection.enter_context({"dask": _dask, "ray": _ray}[kind](address))
        except ImportError as error:
            raise NoEngine(f"--engine {engine} needs {error.name}: {INSTALL[kind]}") from None
        connection.enter_context(joblib.parallel_config(backend=kind))
        parallel = joblib.Parallel(n_jobs=-1, return_as=_RETURN_AS[kind])
        yield lambda parts: _told(engine, parallel, [joblib.delayed(read_part)(p) for p in parts])


def _told(engine: str, parallel: Any, calls: Sequence[Any]) -> Iterator[bytes]:
    """The answers of workers; whatever makes them fail (each engine has errors of its own) is said
    in one line.
    """
    try:
        yield from parallel(calls)
    except ModuleNotFoundError as error:
        raise NoEngine(
            f"--engine {engine}: its workers lack {error.name}; install it there"
        ) from None
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise NoEngine(f"--engine {engine}: its workers failed: {what[:300]}") from None


@contextlib.contextmanager
def _dask(address: str) -> Iterator[None]:
    import distributed

    try:
        client: Any = distributed.Client(  # type: ignore[no-untyped-call]
            f"tcp://{address}", timeout=_PATIENCE_S
        )
    except (OSError, ValueError) as error:
        raise NoEngine(f"no Dask scheduler answers at {address}: {error}"[:300]) from None
    with client:
        yield


@contextlib.contextmanager
def _ray(address: str) -> Iterator[None]:
    import ray
    from ray.util.joblib import register_ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(f"ray://{address}", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise NoEngine(f"no Ray head answers at {address}: {error}"[:300]) from None
    try:
        register_ray()  # type: ignore[no-untyped-call,unused-ignore]
        yield
    finally:
        ray.shutdown()
