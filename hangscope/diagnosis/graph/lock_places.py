"""Waiting for the lock of a file, for the rank that holds it: the kernel says who that is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.processes.process_state import End, Host
from hangscope.trace.model import NONE, Trace

PREFIX = "file lock"
_POLLS = re.compile(r"[\\/]filelock[\\/]")
"""A package that tries again and again instead of waiting in the kernel."""
_NAMED = ".lock"
"""How the files that it locks are called, as a rule."""


def lock_places(
    trace: Trace,
    bounds: Mapping[int, tuple[int, int]],
    hosts: Mapping[int, Host],
    places: Sequence[Place],
) -> list[Place]:
    """One place for each lock that ranks wait for and a rank holds.

    Only for ranks that wait in nothing else, and that others wait for where anybody waits: a thread
    of theirs may wait for a lock while the rank goes on.

    Parameters
    ----------
    bounds:
        Each rank's slice of the records.
    places:
        Those of operations and phases.
    """
    waiting = {rank for place in places for rank in place.waiters}
    wanted = {rank for place in places for rank in place.absent} if waiting else hosts.keys()
    holders = {
        rank: host
        for rank, host in hosts.items()
        if host.wait is not None and host.wait.locked and not _went_on(trace, bounds, host)
    }
    found: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for rank in sorted((wanted & hosts.keys()) - waiting):
        host = hosts[rank]
        if host.end in (End.CLEAN, End.CRASHED) or host.cannot_run:
            continue
        lock = _lock_of(trace, host, holders)
        if lock is not None and not _went_on(trace, bounds, host):
            found[lock].append(rank)
    return [
        Place(
            NONE,
            0,
            tuple(ranks),
            absent=by,
            phase=f"{PREFIX} {path!r}" if path else PREFIX,
            began_ns=_since_ns(hosts, ranks, by),
            members=tuple(sorted({*ranks, *by})),
        )
        for (path, by), ranks in found.items()
    ]


def is_lock(place: Place) -> bool:
    """Whether it is the lock of a file."""
    return place.phase.startswith(PREFIX)


def lock_in_words(place: Place) -> str:
    """``the lock on '/data/cache.lock'``."""
    path = place.phase.removeprefix(PREFIX).strip()
    return f"the lock on {path}" if path else "the lock of a file"


def is_polled(host: Host | None) -> bool:
    """Whether a rank tries again and again to get the lock of a file."""
    return host is not None and any(_POLLS.search(frame.filename) for frame in host.stack[:4])


def _lock_of(
    trace: Trace, host: Host, holders: Mapping[int, Host]
) -> tuple[str, tuple[int, ...]] | None:
    """The file whose lock a rank waits for, and the ranks that hold it."""
    wait = host.wait
    if wait is not None and wait.kind == "lock":
        return (wait.what, host.waits_for) if host.waits_for else None
    if not is_polled(host):
        return None
    here = trace.ranks[host.rank].host
    others = [r for r in holders if r != host.rank and trace.ranks[r].host == here]
    held = holders[others[0]].wait if len(others) == 1 else None
    if held is None or len(held.locked) != 1 or not held.locked[0].endswith(_NAMED):
        return None
    return held.locked[0], (others[0],)


def _went_on(trace: Trace, bounds: Mapping[int, tuple[int, int]], host: Host) -> bool:
    """Whether the rank has issued something since it was seen to wait, or to hold a lock."""
    low, high = bounds.get(host.rank, (0, 0))
    if host.wait is None or low == high:
        return False
    return int(trace.records["created_ns"][high - 1]) > host.wait.seen_ns


def _since_ns(hosts: Mapping[int, Host], ranks: list[int], by: tuple[int, ...]) -> int:
    """Since when they have been seen to wait; where they try again and again, since it is held."""
    own = [
        h.wait for h in (hosts[r] for r in ranks) if h.wait is not None and h.wait.kind == "lock"
    ]
    theirs = [h.wait for h in (hosts[r] for r in by if r in hosts) if h.wait is not None]
    return min((w.since_ns for w in own or theirs if w.since_ns), default=0)
