"""Loads whatever a job left behind as one Trace: the entry point for every command."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hangscope.ring.layout import SLOT
from hangscope.trace import formats
from hangscope.trace.external_reports.ras_snapshots import compare_snapshots
from hangscope.trace.interning import Sharing
from hangscope.trace.job_selection.local_rank_guesses import retract_wrong_guesses
from hangscope.trace.job_selection.newest_attempt import keep_newest
from hangscope.trace.job_selection.stale_dumps import drop_stale_dumps
from hangscope.trace.job_selection.unrelated_logs import drop_unrelated_logs
from hangscope.trace.loading.budget import Budget, default_budget
from hangscope.trace.loading.one_file import Loaded, Task
from hangscope.trace.loading.pieces import read_together
from hangscope.trace.loading.reading import read_tasks
from hangscope.trace.loading.remote import brought_here
from hangscope.trace.loading.tasks import NotARun, listed, opened
from hangscope.trace.loading.titles import attribute_by_title
from hangscope.trace.merging.log_clock import align_log_clocks
from hangscope.trace.merging.merge import merge
from hangscope.trace.merging.pid_attribution import attribute_by_pid
from hangscope.trace.model import Fragment, Trace, Unread
from hangscope.trace.nccl.merge import with_device_events
from hangscope.trace.rings.batch import RingBatch

Progress = Callable[[int, int], None]


class NothingReadable(Exception):  # noqa: N818
    """No file contained anything usable; ``warnings`` has a line for each of them."""

    def __init__(self, warnings: Sequence[str]) -> None:
        self.warnings = tuple(warnings)
        first = self.warnings[0] if self.warnings else "no file found"
        more = f" (and {len(self.warnings) - 1} more)" if len(self.warnings) > 1 else ""
        super().__init__(f"nothing readable: {first}{more}")


def load_trace(
    paths: Sequence[str | Path],
    *,
    progress: Progress | None = None,
    now_ns: int | None = None,
    budget: Budget | None = None,
    engine: int | str | None = None,
) -> Trace:
    """Read run directories, dumps and logs of one job.

    Parameters
    ----------
    paths:
        Files and directories (searched recursively), URLs of such; ``"-"`` is a job log or an
        archive on standard input.
    progress:
        Called as ``progress(files_done, files_found)`` after every file, and now and then while one
        takes long.
    now_ns:
        The current time, for `Trace.observed_ns` of live runs; the system clock by default.
    budget:
        What reading may cost; by default what this machine can give.
    engine:
        How many processes of this machine read large files, or whose workers read rings and dumps
        (`hangscope.trace.loading.engines.read_on`); by default a process per CPU.

    Raises
    ------
    NoEngine
        If the engine cannot be used.
    NothingReadable
        If no file contains anything usable (its ``warnings`` name every file and its problem), or
        if a directory holds so many other files that it cannot be a run's.
    """
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects, none of them garbage
    try:
        return _load(paths, progress, now_ns, budget or default_budget(), engine)
    finally:
        if collecting:
            gc.enable()


def _load(
    paths: Sequence[str | Path],
    progress: Progress | None,
    now_ns: int | None,
    budget: Budget,
    engine: int | str | None,
) -> Trace:
    unread: list[Unread] = []
    elsewhere: list[Loaded] = []
    with ExitStack() as folders:  # temporary folders of unpacked archives
        try:
            if isinstance(engine, str):
                from hangscope.trace.loading.engines import read_on

                elsewhere, tasks = read_on(engine, paths, folders, budget, progress)
            else:
                tasks = listed(brought_here(paths, unread, folders, budget), unread, budget)
            tasks = opened(tasks, unread, folders, budget)
        except NotARun as hopeless:
            raise NothingReadable([str(hopeless)]) from None
        workers = engine if isinstance(engine, int) else None
        return _read(tasks, elsewhere, unread, progress, now_ns, budget, workers)


def _read(
    tasks: Sequence[Task],
    elsewhere: Sequence[Loaded],
    unread: list[Unread],
    progress: Progress | None,
    now_ns: int | None,
    budget: Budget,
    workers: int | None,
) -> Trace:
    begun_ns = time.time_ns() if now_ns is None else now_ns
    fragments: list[Fragment] = []
    shared = Sharing()
    rings = RingBatch(sum(min(t.kind.records, t.size // SLOT.itemsize) for t in tasks))
    done = 0

    def still_reading() -> None:
        if progress is not None:
            progress(done, len(tasks))

    read = read_tasks(tasks, rings, budget, still_reading, workers)
    for loaded in itertools.chain(elsewhere, read):
        done += 1
        # The reader of rings shares such values itself.
        fragments += [f if f.source.format == formats.RING else shared(f) for f in loaded.fragments]
        unread.extend(loaded.unread)
        still_reading()
    fragments += map(shared, read_together(tasks, fragments))
    fragments = compare_snapshots(fragments)
    silent = [f for f in fragments if not _says_anything(f)]
    fragments = [f for f in fragments if _says_anything(f)]
    warnings: list[str] = []
    named = {t.shown for t in tasks if t.explicit}
    for fragment in silent:
        # A log without evidence is not worth a warning if it was found beside usable files.
        if not fragments or fragment.source.path in named or not _is_log_name(fragment):
            warnings.extend(f"{fragment.source.path}: {text}" for text in fragment.warnings)
    if not fragments:
        why = [*(u.line for u in unread), *warnings]
        raise NothingReadable(why or [f"{task.shown}: tells of no rank" for task in tasks])
    fragments, foreign = drop_unrelated_logs(fragments)
    fragments, others = keep_newest(align_log_clocks(fragments))
    fragments, stale = drop_stale_dumps(fragments)
    silent_logs = {f.source.path for f in silent if f.source.format == formats.LOG}
    fragments = attribute_by_pid(retract_wrong_guesses(fragments, silent_logs))
    fragments = attribute_by_title(fragments)
    others = [*foreign, *others, *stale]
    if not fragments:
        raise NothingReadable([*(u.line for u in unread), *warnings, *others])
    devices = {f.facts.rank: f.device for f in fragments if f.device is not None}
    trace = merge(
        _drain(fragments), warnings=[*warnings, *others], unread=unread, block=rings.block
    )
    return _with_time(with_device_events(trace, devices), begun_ns)


def _with_time(trace: Trace, begun_ns: int) -> Trace:
    """The trace as of now if a process was looked at while it was read, else as of the last look.

    What a monitor saw before is on record, like everything else: the answer must be the same an
    hour later, and on another machine.
    """
    looked_ns = max((f.observed_ns for f in trace.ranks.values() if f.alive), default=0)
    current = looked_ns >= begun_ns
    return replace(
        trace,
        live=looked_ns > 0,
        current=current,
        observed_ns=begun_ns if current else max(looked_ns, trace.observed_ns) or begun_ns,
    )


def _drain(fragments: list[Fragment]) -> Iterator[Fragment]:
    """Yield the fragments and let go of them: those of thousands of ranks are large."""
    while fragments:
        yield fragments.pop()


def _is_log_name(fragment: Fragment) -> bool:
    return fragment.source.path.lower().endswith((".log", ".out", ".err", ".log.gz"))


def _says_anything(fragment: Fragment) -> bool:
    return bool(
        len(fragment.records)
        or len(fragment.members)
        or fragment.claims
        or fragment.groups
        or fragment.facts.rank >= 0
        or fragment.facts.threads
    )
