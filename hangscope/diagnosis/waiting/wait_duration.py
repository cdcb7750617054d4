"""Which waits count: those that lasted long enough, in a job that stood still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.lock_places import is_lock
from hangscope.diagnosis.graph.places import INIT, Place
from hangscope.diagnosis.groups.left import has_left_group
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.pace import standstill_s

_SEEN_TWICE_S = 0.5


def overdue_only(context: Context) -> tuple[Place, ...]:
    """On a live job, drop waits that have not lasted long enough: slow is not hung.

    Waiting for a rank that has ended, or has destroyed the group, needs no timeout, and accuses
    only that rank.

    Returns
    -------
    tuple of Place
        The places that were dropped, as they were.
    """
    trace, processes = context.trace, context.processes
    if not trace.live:
        return ()
    limit = trace.timeout_s
    kept: list[int] = []
    for index, place in enumerate(context.waits.places):
        if context.blocked_s(place) >= limit:
            kept.append(index)
            continue
        ended = tuple(
            r
            for r in (place.absent or place.behind)
            if r in processes and (_has_ended(processes[r]) or _has_left(context, place, r))
        )
        if ended:
            absent, behind = (ended, place.behind) if place.absent else ((), ended)
            narrowed = replace(place, absent=absent, behind=behind, unknown=())
            context.waits.narrow(index, narrowed)
            kept.append(index)
    kept += _blocked_targets(context, kept, lambda place: max(limit / 4, _limit_s(context, place)))
    return _keep_only(context, kept)


def _has_ended(process: ProcessState) -> bool:
    return process.end in (End.CLEAN, End.CRASHED) and not process.secondary


def _has_left(context: Context, place: Place, rank: int) -> bool:
    """Whether a rank has destroyed the group of a collective that it has not come to: it never
    will.

    Groups made by hand are not torch's to destroy, and a rank may be about to make a new world.
    """
    if rank not in place.absent or place.p2p or not 0 <= place.group < len(context.trace.groups):
        return False
    if context.trace.groups[place.group].outsiders:
        return False
    left = context.trace.ranks[rank].finalized and context.processes[rank].phase != INIT
    return bool(left) or has_left_group(context.trace, rank, place.group)


def _blocked_targets(
    context: Context, kept: list[int], least_s: Callable[[Place], float]
) -> list[int]:
    """Places where ranks that others have waited for long enough are stuck themselves.

    They arrived late and are now held up too, if not for as long, so they are not busy with work of
    their own. A momentary wait, in contrast, is part of the work that keeps them from arriving.
    """
    places, known = context.waits.places, set(kept)
    still_in: dict[int, list[int]] = {}
    for index, place in enumerate(places):
        if index not in known and context.blocked_s(place) >= least_s(place):
            for rank in place.waiters:
                still_in.setdefault(rank, []).append(index)
    found: list[int] = []
    to_visit = list(kept)
    while to_visit:
        for rank in places[to_visit.pop()].targets:
            more = set(still_in.pop(rank, ())) - known
            known |= more
            found += more
            to_visit += more
    return found


def _locks_that_last(context: Context, kept: list[int]) -> set[int]:
    """Locks that hold up ranks which others have waited for long enough.

    A holder that has itself waited that long does not let go; any other must be seen to hold the
    lock twice.
    """
    places = context.waits.places
    wanted = {rank for i in kept for rank in places[i].targets}
    waiting = {rank for i in kept for rank in places[i].waiters}
    return {
        index
        for index, place in enumerate(places)
        if is_lock(place)
        and wanted.issuperset(place.waiters)
        and (waiting.issuperset(place.targets) or context.longest_wait_s([place]) >= _SEEN_TWICE_S)
    }


def as_victims(processes: dict[int, ProcessState], told_ns: int = 0) -> dict[int, ProcessState]:
    """Every rank was ended from outside, so no rank's end is its own doing.

    If they were told to stop at one moment (``told_ns``), all waits end there, however long some
    ranks took to exit.
    """
    return {
        rank: replace(
            process,
            end=End.TORN_DOWN,
            secondary=True,
            end_ns=min(process.end_ns or told_ns, told_ns) if told_ns else process.end_ns,
        )
        for rank, process in processes.items()
    }


def lasting_only(context: Context) -> tuple[Place, ...]:
    """In a job that was killed from outside, keep only waits that were already a hang.

    Returns
    -------
    tuple of Place
        The places that were dropped, as they were.
    """
    places = context.waits.places
    kept = [i for i, p in enumerate(places) if context.blocked_s(p) >= _limit_s(context, p)]
    kept += _blocked_targets(context, kept, lambda place: _limit_s(context, place) / 2)
    return _keep_only(context, kept)


def _keep_only(context: Context, kept: list[int]) -> tuple[Place, ...]:
    """Drop all other places, except locks that hold up ranks waited for; returns the dropped."""
    counted = {*kept, *_locks_that_last(context, kept)}
    dropped = tuple(p for i, p in enumerate(context.waits.places) if i not in counted)
    context.waits.keep_only(counted)
    return dropped


def _limit_s(context: Context, place: Place) -> float:
    """The wait after which a job at this place no longer counts as moving.

    While ranks still start and connect to each other, the pace of the job is unknown.
    """
    limit_s = standstill_s(context.trace)
    return max(limit_s, min(SLOW_S, context.trace.timeout_s)) if place.phase == INIT else limit_s


SLOW_S = 60.0
"""A rank that saves, loads or compiles may keep the others waiting this long."""
_FAR, _HOUR_S = 3, 3600.0
_USUAL = (600.0, 1800.0)
"""The shortest and the longest default timeout (s) torch ever had."""
NEARLY = 0.9
"""A rank that has waited for this share of its timeout is about to time out, or has."""


class Timeouts(NamedTuple):
    """Timeouts (s) of unfinished operations."""

    shortest_s: float
    longest_s: float


def recorded_timeouts(context: Context) -> Timeouts | None:
    """The timeouts of unfinished operations; None if none is recorded."""
    limits_ms = context.trace.records["timeout_ms"][context.front.unfinished]
    known_ms = limits_ms[limits_ms > 0]
    if not len(known_ms):
        return None
    return Timeouts(float(known_ms.min()) / 1000, float(known_ms.max()) / 1000)


def is_beyond_any_timeout(context: Context, waited_s: float) -> bool:
    """Whether somebody would have timed out long before: files that were copied are dated so."""
    limits = recorded_timeouts(context) or Timeouts(*_USUAL)
    return waited_s > _FAR * limits.longest_s + _HOUR_S
