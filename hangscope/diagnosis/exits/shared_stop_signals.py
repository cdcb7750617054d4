"""Ranks that were told to stop: from outside, or by a launcher reacting to a failure.

Not all of them end, or show it, at once.

Schedulers ask first and kill later. A rank with a handler saves in the meantime, one that ignores
the signal fails when it loses the others, and a thread inside C++ does not notice Ctrl-C at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.trace.model import RankFacts, Trace
from hangscope.trace.signals import SIGHUP, SIGINT, SIGTERM
from hangscope.trace.units import SECOND_NS

ANSWERED_NS = 1_000_000_000
"""A launcher that reacts to a failure stops nobody this long before it."""
NOTICED_NS = 100_000_000
"""A peer's connection may break this long before its end is noticed; a launcher's reaction takes
longer."""
AT_ONCE_NS = 100_000_000
"""Processes told to stop at one moment are gone within this time; up to 70 ms was observed."""
_ASKING = (SIGTERM, SIGINT, SIGHUP)


def signalled_together(processes: Mapping[int, ProcessState], trace: Trace) -> frozenset[int]:
    """Ranks that a signal meant for all ended before anybody else had failed.

    Several ranks of one host at one moment qualify; so does one interrupted rank if no other could
    have shown an interrupt. A launcher's reaction to a failure is about as fast, but the failure
    comes first; and if one rank was signalled alone, most others raise as they lose it. One whole
    host out of several was told on its own, which does not qualify. Logs have whole seconds, so
    they do not show what happened at one moment.
    """
    asked = [h for h in processes.values() if _was_asked(h, trace)]
    if trace.missing_ranks or not asked or signalled_alone(processes, trace) is not None:
        return frozenset()
    first = min(asked, key=lambda h: (h.end_ns, h.rank))
    by_and_by = _one_after_the_other(processes, trace)
    told = frozenset(h.rank for h in asked if _is_told_with(h, first, trace, at_once=not by_and_by))
    told |= _on_their_way(first, processes, trace)
    rest = [process for rank, process in processes.items() if rank not in told]
    here = [process for process in rest if _on_host_of(process, first, trace)]
    if (rest and not here) or not all(_came_later(process, first, trace) for process in rest):
        return frozenset()
    deaf = len(here) == len(rest) and all(_ran_no_python(process, trace) for process in rest)
    raised = sum(trace.ranks[process.rank].exception is not None for process in rest)
    several = len(told) > 1 and (by_and_by or len(told) > 2 * raised)
    return told if several or (deaf and trace.ranks[first.rank].was_interrupted) else frozenset()


def signalled_alone(processes: Mapping[int, ProcessState], trace: Trace) -> int | None:
    """The rank that a signal ended while all others of its host were seen not to have received one.

    The others were told to stop afterwards, at one moment, by a launcher reacting to that end.
    """
    first, *later = _asked_on_one_host(processes, trace) or (None,)
    if first is None or len(later) < 2:
        return None
    before, after = _not_signalled(first, trace), _not_signalled(later[0], trace)
    if before is None or after is None:
        return None
    return first.rank if {h.rank for h in later} <= before and not after else None


def _one_after_the_other(processes: Mapping[int, ProcessState], trace: Trace) -> bool:
    """Whether some ranks had been told to stop, and others not yet, when the first or second one
    ended.

    A launcher tells all at once. A rank that handles the signal, or fails as it loses the first
    one, did not end because of it but may have been told nevertheless.
    """
    first, *later = _asked_on_one_host(processes, trace) or (None,)
    exit_ = trace.ranks[first.rank].exit if first is not None else None
    if first is None or exit_ is None:
        return False
    before, after = exit_.not_signalled, _not_signalled(later[0], trace) if later else None
    told = {h.rank for h in later} | exit_.signalled
    return bool((before and told - before) or (after and len(later) > 1))


def _on_their_way(
    first: ProcessState, processes: Mapping[int, ProcessState], trace: Trace
) -> frozenset[int]:
    """Ranks that live on, to which the same signal had been sent when it ended the first.

    It will end them, too. Whether they were told with the first one or because of it does not show.
    """
    exit_ = trace.ranks[first.rank].exit
    told = exit_.signalled if exit_ is not None else frozenset()
    return frozenset(r for r in told if r in processes and not processes[r].gone)


def _asked_on_one_host(processes: Mapping[int, ProcessState], trace: Trace) -> list[ProcessState]:
    """Ranks of the first one's host that a stop signal ended, by time."""
    asked = [h for h in processes.values() if h.gone and signal_of(trace.ranks[h.rank]) is not None]
    asked.sort(key=lambda h: (h.end_ns, h.rank))
    return [h for h in asked if _on_host_of(h, asked[0], trace)]


def outlived(told: frozenset[int], processes: Mapping[int, ProcessState], trace: Trace) -> bool:
    """Whether at least as many ranks as were told lived on for longer than any rank needs to
    stop."""
    rest = [process for rank, process in processes.items() if rank not in told]
    if not told or len(rest) < len(told):
        return False
    lived_on_ns = max(_last_seen_ns(h, trace) for h in rest) - min(
        processes[r].end_ns for r in told if processes[r].gone
    )
    return lived_on_ns > trace.timeout_s * SECOND_NS


def were_interrupted(told: frozenset[int], trace: Trace) -> bool:
    """Whether these were told to stop by Ctrl-C."""
    return any(trace.ranks[rank].was_interrupted for rank in told)


def _was_asked(process: ProcessState, trace: Trace) -> bool:
    """Whether a stop signal ended the process at an exactly known time."""
    exact = process.end is End.TORN_DOWN and process.end_ns % SECOND_NS
    return bool(exact) and signal_of(trace.ranks[process.rank]) is not None


def signal_of(facts: RankFacts) -> int | None:
    """The stop signal that ended a rank.

    A rank records its interrupt before it ends, and may end with a status instead.
    """
    seen = facts.exit.signal if facts.exit is not None else None
    if seen is None and facts.was_interrupted:
        return SIGINT
    return seen if seen in _ASKING else None


def _is_told_with(
    process: ProcessState, first: ProcessState, trace: Trace, *, at_once: bool
) -> bool:
    """Whether the same signal ended a rank at the same moment on the same host.

    Ctrl-C takes effect when Python runs the next time. Someone stopping ranks one by one (not
    ``at_once``) may take any time.
    """
    if not _on_host_of(process, first, trace):
        return False
    if trace.ranks[first.rank].was_interrupted:
        return trace.ranks[process.rank].was_interrupted
    soon = process.end_ns - first.end_ns <= AT_ONCE_NS
    same = signal_of(trace.ranks[process.rank]) == signal_of(trace.ranks[first.rank])
    return same and (soon or not at_once)


def _ran_no_python(process: ProcessState, trace: Trace) -> bool:
    """Whether a rank has run no Python since, as far as known: it was killed, or lives on."""
    exit_, exception = trace.ranks[process.rank].exit, trace.ranks[process.rank].exception
    killed = exit_ is None or exit_.kind in ("signal", "oom", "unknown")
    return killed and (exception is None or not exception.is_main_thread)


def _not_signalled(process: ProcessState, trace: Trace) -> frozenset[int] | None:
    exit_ = trace.ranks[process.rank].exit
    return exit_.not_signalled if exit_ is not None else None


def _on_host_of(process: ProcessState, other: ProcessState, trace: Trace) -> bool:
    return trace.ranks[process.rank].host == trace.ranks[other.rank].host


def _came_later(process: ProcessState, told: ProcessState, trace: Trace) -> bool:
    """Whether a rank has not ended, or not because of anything that may have stopped another one.

    A rank records when it raises an exception itself; other failures are noticed by somebody else.
    """
    if not process.gone or process.end is End.TORN_DOWN:
        return True
    after_ns = ANSWERED_NS if process.end is End.CRASHED else 0
    if process.end is End.CRASHED and trace.ranks[process.rank].exception is not None:
        after_ns = -NOTICED_NS if process.secondary else 0
    return process.end_ns > told.end_ns + after_ns


def _last_seen_ns(process: ProcessState, trace: Trace) -> int:
    """Until when a rank is known to have lived."""
    if process.gone:
        return process.end_ns
    return trace.observed_ns if trace.live else trace.ranks[process.rank].observed_ns


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
