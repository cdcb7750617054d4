"""Waiting for a file lock means waiting for the rank that holds it, which the kernel reveals."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.trace.model import NONE, Trace

PREFIX = "file lock"
_POLLS = re.compile(r"[\\/]filelock[\\/]")
"""A package that polls instead of waiting in the kernel."""
_NAMED = ".lock"
"""Usual suffix of the files it locks."""


def lock_places(
    trace: Trace,
    bounds: Mapping[int, tuple[int, int]],
    processes: Mapping[int, ProcessState],
    places: Sequence[Place],
) -> list[Place]:
    """One place for each lock that ranks wait for and a rank holds.

    Only ranks that wait in nothing else count, and, if anybody waits, only ranks that others wait
    for: a side thread may wait for a lock while the rank goes on.

    Parameters
    ----------
    bounds:
        Each rank's slice of the records.
    places:
        Those of operations and phases.
    """
    waiting = {rank for place in places for rank in place.waiters}
    wanted = {rank for place in places for rank in place.absent} if waiting else processes.keys()
    holders = {
        rank: process
        for rank, process in processes.items()
        if process.wait is not None and process.wait.locked and not _went_on(trace, bounds, process)
    }
    found: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for rank in sorted((wanted & processes.keys()) - waiting):
        process = processes[rank]
        if process.end in (End.CLEAN, End.CRASHED) or process.cannot_run:
            continue
        lock = _lock_of(trace, process, holders)
        if lock is not None and not _went_on(trace, bounds, process):
            found[lock].append(rank)
    return [
        Place(
            NONE,
            0,
            tuple(ranks),
            absent=by,
            phase=f"{PREFIX} {path!r}" if path else PREFIX,
            began_ns=_since_ns(processes, ranks, by),
            members=tuple(sorted({*ranks, *by})),
        )
        for (path, by), ranks in found.items()
    ]


def is_lock(place: Place) -> bool:
    """Whether the place is a file lock."""
    return place.phase.startswith(PREFIX)


def lock_in_words(place: Place) -> str:
    """``the lock on '/data/cache.lock'``."""
    path = place.phase.removeprefix(PREFIX).strip()
    return f"the lock on {path}" if path else "the lock of a file"


def is_polled(process: ProcessState | None) -> bool:
    """Whether the rank polls for a file lock."""
    return process is not None and any(_POLLS.search(frame.filename) for frame in process.stack[:4])


def _lock_of(
    trace: Trace, process: ProcessState, holders: Mapping[int, ProcessState]
) -> tuple[str, tuple[int, ...]] | None:
    """The file whose lock a rank waits for, and the ranks that hold it."""
    wait = process.wait
    if wait is not None and wait.kind == "lock":
        return (wait.what, process.waits_for) if process.waits_for else None
    if not is_polled(process):
        return None
    here = trace.ranks[process.rank].host
    others = [r for r in holders if r != process.rank and trace.ranks[r].host == here]
    held = holders[others[0]].wait if len(others) == 1 else None
    if held is None or len(held.locked) != 1 or not held.locked[0].endswith(_NAMED):
        return None
    return held.locked[0], (others[0],)


def _went_on(trace: Trace, bounds: Mapping[int, tuple[int, int]], process: ProcessState) -> bool:
    """Whether the rank has issued something since it was seen to wait for or hold a lock."""
    low, high = bounds.get(process.rank, (0, 0))
    if process.wait is None or low == high:
        return False
    return int(trace.records["created_ns"][high - 1]) > process.wait.seen_ns


def _since_ns(processes: Mapping[int, ProcessState], ranks: list[int], by: tuple[int, ...]) -> int:
    """Since when the ranks were seen to wait; for polling ranks, since when the lock is held."""
    own = [
        h.wait
        for h in (processes[r] for r in ranks)
        if h.wait is not None and h.wait.kind == "lock"
    ]
    waits = [h.wait for h in (processes[r] for r in by if r in processes) if h.wait is not None]
    return min((w.since_ns for w in own or waits if w.since_ns), default=0)
