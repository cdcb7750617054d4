"""Ranks that were told to stop: from outside, or by a launcher reacting to a failure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hangscope.diagnosis.exits.shared_stop_signals import (
    NOTICED_NS,
    outlived,
    signalled_alone,
    signalled_together,
    were_interrupted,
)
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.trace.model import RankFacts, Trace
from hangscope.trace.signals import SIGTERM

_AT_ONCE_NS = 50_000_000
"""A launcher told to stop passes that on to all its ranks within this time; up to 32 ms was
observed."""


def by_launcher(facts: RankFacts) -> bool:
    return facts.exit is not None and facts.exit.by_launcher


def with_isolated_stops(
    processes: dict[int, ProcessState], trace: Trace
) -> dict[int, ProcessState]:
    """A single rank or host that was told to stop before anybody else had ended is no victim.

    A launcher tells all of its ranks; a preemption notice, an operator or a limit may hit one. They
    may also hit several, if the others live on.
    """
    together = signalled_together(processes, trace)
    if together:
        alone = outlived(together, processes, trace) and not were_interrupted(together, trace)
        return _as_failed(processes, together) if alone else processes
    torn = [
        rank
        for rank, process in processes.items()
        if process.end is End.TORN_DOWN and not by_launcher(trace.ranks[rank])
    ]
    if not torn or len(processes) < 2:
        return processes
    first = min((processes[rank] for rank in torn), key=lambda h: (h.end_ns, h.rank))
    signalled_first = _signalled_with(first, processes, trace)
    if not signalled_first.issuperset(torn):
        return processes
    if any(h.state == "stopped" and r not in signalled_first for r, h in processes.items()):
        return processes  # that one survives a signal that all may have been sent
    others = [h for r, h in processes.items() if r not in signalled_first and h.gone]
    if trace.missing_ranks or any(_ended_before(h, first, trace) for h in others):
        return processes
    return _as_failed(processes, signalled_first)


def _as_failed(processes: dict[int, ProcessState], ranks: Iterable[int]) -> dict[int, ProcessState]:
    failed = {r: replace(processes[r], end=End.CRASHED, secondary=False) for r in ranks}
    return {**processes, **failed}


def _signalled_with(
    first: ProcessState, processes: Mapping[int, ProcessState], trace: Trace
) -> set[int]:
    """The ranks told to stop with the first one: all of its host at one moment, or it alone."""
    name = trace.ranks[first.rank].host
    here = {rank for rank in processes if trace.ranks[rank].host == name}
    at_once = all(
        processes[r].end is End.TORN_DOWN
        and 0 < processes[r].end_ns - first.end_ns + 1 <= _AT_ONCE_NS
        for r in here
    )
    together = name and at_once and len(here) < len(processes)
    return here if together and signalled_alone(processes, trace) is None else {first.rank}


def without_echoes_of_stop(
    processes: dict[int, ProcessState], trace: Trace
) -> dict[int, ProcessState]:
    """If launchers of several hosts were told to stop, ranks failing in response have not failed.

    A launcher also reacts to a failure with SIGTERM, but only among its own ranks and after one of
    these ended otherwise. What ranks raise as connections close is caused by the stop.
    """
    hosts = {
        facts.host
        for facts in trace.ranks.values()
        if facts.exit is not None and facts.exit.signal == SIGTERM and not facts.exit.by_launcher
    }
    if len(hosts - {None}) < 2:
        return processes
    echoes = {r: h for r, h in processes.items() if h.end is End.CRASHED and h.secondary}
    return processes | {r: replace(h, end=End.TORN_DOWN) for r, h in echoes.items()}


def _ended_before(process: ProcessState, alone: ProcessState, trace: Trace) -> bool:
    """Whether a rank's end may be the reason another one was stopped.

    An end without a time may be. A launcher reacts to ends it has seen; clocks of other hosts say
    nothing about that.
    """
    if not process.end_ns:
        return True
    if process.secondary:
        return process.end_ns < alone.end_ns - NOTICED_NS
    here = trace.ranks[process.rank].host == trace.ranks[alone.rank].host
    return not here or process.end_ns < alone.end_ns + NOTICED_NS
