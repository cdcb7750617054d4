"""Reads one file into fragments or one warning. Never raises because of a file's content."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hangscope.trace import clean, formats
from hangscope.trace.files import file_names, sniff
from hangscope.trace.files.truncated_dumps import pickle_before_entries, without_entries
from hangscope.trace.files.unpickle import TruncatedPickle, load_checked, load_plain
from hangscope.trace.flight_recorder.read import Origin, read_document
from hangscope.trace.loading.json_files import read_json
from hangscope.trace.model import Fragment, Unread
from hangscope.trace.nccl.rings import with_device_ring
from hangscope.trace.rings.batch import RingBatch
from hangscope.trace.rings.read import read_ring


@dataclass(frozen=True, slots=True)
class Task:
    """One file to read; ``shown`` is its name in reports."""

    path: str
    shown: str
    kind: sniff.Kind
    size: int = 0
    written_ns: int = 0
    explicit: bool = False
    """Named by the user rather than found in a directory."""
    standard: bool = False
    """Standard input."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What reading one file produced."""

    fragments: tuple[Fragment, ...] = ()
    unread: tuple[Unread, ...] = ()


def read_task(task: Task, *, isolated: bool = False, rings: RingBatch | None = None) -> Loaded:
    """Read one file, whatever its kind.

    ``isolated``: this process has resource limits, so pickles need not be scanned first. ``rings``:
    what rings of one job share.
    """
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of small objects, none of them garbage
    try:
        fragments = _read(task, isolated, rings)
    except RecursionError:
        return _failed(task, "nested too deeply")
    except MemoryError:
        return _failed(task, "needs more memory than there is")
    except OSError as error:
        return _failed(task, (error.strerror or type(error).__name__).lower())
    except Exception as error:  # a damaged file may break a reader anywhere: one line, no traceback
        return _failed(task, str(error) or type(error).__name__)
    finally:
        if collecting:
            gc.enable()
    return Loaded(tuple(fragments))


def _failed(task: Task, problem: str) -> Loaded:
    return Loaded(unread=(Unread(task.shown, clean.name(problem[:300])),))


def _read(task: Task, isolated: bool, rings: RingBatch | None) -> list[Fragment]:
    kind = task.kind.name
    if kind == formats.RING:
        fragment = read_ring(task.path, shown=task.shown, batch=rings)
        return [with_device_ring(fragment, task.path)]
    if kind == formats.JOURNAL:
        from hangscope.trace.external_reports.journal import read_journal

        return [
            replace(fragment, source=replace(fragment.source, path=task.shown))
            for fragment in read_journal(task.path)
        ]
    if kind == formats.LOG:
        return _read_log(task)
    origin = Origin(task.shown, kind, file_names.rank_of_dump(Path(task.path)), task.written_ns)
    data = sniff.read_all(task.path, task.kind.compression)
    if kind == formats.PICKLE:
        return _read_pickle(data, origin, load_checked if isolated else load_plain)
    return read_json(data, origin, Path(task.path))


def _read_pickle(data: bytes, origin: Origin, load: Callable[[bytes], Any]) -> list[Fragment]:
    """Read a dump; of a truncated one, what precedes its entries."""
    try:
        document = load(data)
    except TruncatedPickle as cut:
        head = pickle_before_entries(data)
        try:
            rest = without_entries(load(head)) if head is not None else None
        except ValueError:
            raise cut from None
        if rest is None:
            raise
        return read_document(rest, replace(origin, truncated=True))
    return read_document(document, origin)


def _read_log(task: Task) -> list[Fragment]:
    from hangscope.trace.job_log.read import read_job_log

    if task.standard:
        return read_job_log(sys.stdin.buffer, path=task.shown)
    with sniff.open_stream(task.path, task.kind.compression) as stream:
        return read_job_log(stream, path=task.shown, file=Path(task.path))
