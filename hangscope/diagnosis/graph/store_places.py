"""Waiting in the job's key-value store for an unset key: no record says who is to set it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.observability import unrecorded
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.trace.model import NONE, Trace

PREFIX = "store."
"""How the recorder names the phases of such waits."""


def waits_in_store(process: ProcessState | None) -> bool:
    """Whether a rank is in a call that returns once another rank has set a key."""
    if process is None or (process.gone and process.end is not End.TORN_DOWN):
        return False
    return (process.phase or "").startswith(PREFIX)


def key_given_up(process: ProcessState | None) -> str:
    """The store key a rank timed out on; empty if it failed otherwise."""
    return process.failure.store_key if process is not None else ""


def without_store_waits(sinks: Iterable[int], processes: Mapping[int, ProcessState]) -> list[int]:
    """Of ranks that did not arrive, those that do not wait for a key themselves.

    If all of them wait in the store, nothing distinguishes them: all are kept.
    """
    chosen = list(sinks)
    return [r for r in chosen if not waits_in_store(processes.get(r))] or chosen


def store_places(
    trace: Trace, processes: Mapping[int, ProcessState], waiting: frozenset[int]
) -> list[Place]:
    """The key that most ranks wait for, if no rank waits in an operation.

    Ranks that do not wait for the key are the ones that can set it. At least as many ranks must
    wait as do not, otherwise it is a helper's business rather than a rendezvous of the ranks. If
    all others wait in operations, the majority in the store is held up by those few as well.

    Parameters
    ----------
    waiting
        Ranks that wait in operations of process groups.
    """
    by_key: dict[tuple[str, str], list[int]] = defaultdict(list)
    since: dict[tuple[str, str], int] = {}
    for rank, process in sorted(processes.items()):
        phases = trace.ranks[rank].phases
        if rank in waiting or not phases or not waits_in_store(process):
            continue
        key = (phases[-1].name, phases[-1].detail)
        by_key[key].append(rank)
        if phases[-1].since_ns:
            since[key] = min(since.get(key, phases[-1].since_ns), phases[-1].since_ns)
    if not by_key:
        return []
    key = max(by_key, key=lambda k: (len(by_key[k]), -since.get(k, 0)))
    inside = by_key[key]
    everybody = set(trace.ranks) | set(trace.missing_ranks)
    outside = sorted(everybody - set(inside))
    if not outside or len(outside) > len(inside):
        return []
    untold = unrecorded(trace)
    known = [r for r in outside if r in trace.ranks and r not in untold]
    if waiting and (not waiting.issuperset(known) or len(known) == len(inside)):
        return []
    return [
        Place(
            NONE,
            0,
            tuple(inside),
            absent=tuple(known),
            unknown=tuple(r for r in outside if r not in known),
            phase=f"{key[0]} {key[1]!r}" if key[1] else key[0],
            began_ns=since.get(key, 0),
            members=tuple(sorted(everybody)),
        )
    ]
