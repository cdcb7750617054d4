"""Decides which files are read in this process, and which in one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hangscope.trace import formats
from hangscope.trace.loading.budget import Budget
from hangscope.trace.loading.one_file import Loaded, Task, read_task
from hangscope.trace.loading.parallel import read_in_workers
from hangscope.trace.model import Unread
from hangscope.trace.rings.batch import RingBatch

_PARSED = (formats.PICKLE, formats.JSON, formats.LOG)
_WORTH_WORKERS = 4 << 20
"""From this many bytes on, several processes are faster than one."""


class NoEngine(Exception):  # noqa: N818
    """An engine that is not known, not installed or not reached; the text is one line."""


def read_tasks(
    tasks: Sequence[Task],
    rings: RingBatch | None,
    budget: Budget,
    still_reading: Callable[[], None] = lambda: None,
    workers: int | None = None,
) -> Iterable[Loaded]:
    """Read files, here and in worker processes; yields one result per task.

    Pickles and compressed files always go to a process of their own, however small: the cost of a
    hostile one cannot be seen beforehand. Other files go there if they are large. Rings need no
    worker.

    Parameters
    ----------
    rings:
        What the rings of one job share.
    still_reading:
        Called now and then while a file takes long.
    workers:
        How many processes read large files; by default one per CPU.
    """
    parsed = [t for t in tasks if t.kind.name in _PARSED and not t.standard and t.size]
    small = sum(t.size for t in parsed) < _WORTH_WORKERS
    apart = [t for t in parsed if not small or t.kind.name == formats.PICKLE or t.kind.compression]
    elsewhere = {id(t) for t in apart}
    for task in tasks:
        if id(task) in elsewhere:
            continue
        if budget.is_over:
            yield Loaded(unread=(Unread(task.shown, budget.over_text),))
        else:
            yield read_task(task, rings=rings)
    if apart and budget.is_over:
        yield Loaded(unread=tuple(Unread(task.shown, budget.over_text) for task in apart))
    elif apart:
        yield from read_in_workers(
            apart, budget, 1 if small and workers is None else workers, waiting=still_reading
        )
