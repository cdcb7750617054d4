"""Ranks that were told to stop with others, when not all of these end, or show it, at once.

Schedulers ask first and kill later: who has a handler saves meanwhile, who ignores the signal fails
as it loses the others, and a thread inside of C++ does not hear Ctrl-C at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.trace.model import RankFacts, Trace
from hangscope.trace.signals import SIGHUP, SIGINT, SIGTERM

ANSWERED_NS = 1_000_000_000
"""A launcher that answers a failure stops nobody so long before the failure."""
NOTICED_NS = 100_000_000
"""A peer's connection may break before the end that breaks it is noticed; a launcher that answers
a failure needs longer."""
AT_ONCE_NS = 100_000_000
"""Processes that were told at one moment are gone within that; seen were up to 70 ms."""
_SECOND_NS = 1_000_000_000
_ASKING = (SIGTERM, SIGINT, SIGHUP)


def told_together(processes: Mapping[int, ProcessState], trace: Trace) -> frozenset[int]:
    """Ranks that a signal ended before anybody else had failed, where it was meant for all.

    Several of one host at one moment are; and one that was interrupted is, where no other could
    have shown that it was. A launcher that answers a failure is about as fast, but what it answers
    comes before; and where one was told alone, most others raise as they lose it. A whole host of
    several is told by itself, and logs, which tell whole seconds, do not tell what was at one
    moment.
    """
    asked = [h for h in processes.values() if _was_asked(h, trace)]
    if trace.missing_ranks or not asked or told_alone(processes, trace) is not None:
        return frozenset()
    first = min(asked, key=lambda h: (h.end_ns, h.rank))
    by_and_by = _one_after_the_other(processes, trace)
    told = frozenset(h.rank for h in asked if _is_told_with(h, first, trace, at_once=not by_and_by))
    rest = [process for rank, process in processes.items() if rank not in told]
    here = [process for process in rest if _on_host_of(process, first, trace)]
    if (rest and not here) or not all(_came_later(process, first, trace) for process in rest):
        return frozenset()
    deaf = len(here) == len(rest) and all(_heard_nothing(process, trace) for process in rest)
    raised = sum(trace.ranks[process.rank].exception is not None for process in rest)
    several = len(told) > 1 and (by_and_by or len(told) > 2 * raised)
    return told if several or (deaf and trace.ranks[first.rank].was_interrupted) else frozenset()


def told_alone(processes: Mapping[int, ProcessState], trace: Trace) -> int | None:
    """The rank that a signal ended while all others of its host had been sent none, as was seen.

    These were told to stop afterwards, at one moment: by a launcher that answers its end.
    """
    first, *later = _asked_on_one_host(processes, trace) or (None,)
    if first is None or len(later) < 2:
        return None
    before, after = _untold(first, trace), _untold(later[0], trace)
    if before is None or after is None:
        return None
    return first.rank if {h.rank for h in later} <= before and not after else None


def _one_after_the_other(processes: Mapping[int, ProcessState], trace: Trace) -> bool:
    """Whether one had been told to stop, and another one not yet, as the first or the second ended.

    A launcher tells all at once. Who deals with the signal, or fails as it loses the first, has not
    ended of it, and may have been told all the same.
    """
    first, *later = _asked_on_one_host(processes, trace) or (None,)
    exit_ = trace.ranks[first.rank].exit if first is not None else None
    if first is None or exit_ is None:
        return False
    before, after = exit_.untold, _untold(later[0], trace) if later else None
    told = {h.rank for h in later} | exit_.told
    return bool((before and told - before) or (after and len(later) > 1))


def _asked_on_one_host(processes: Mapping[int, ProcessState], trace: Trace) -> list[ProcessState]:
    """Those of the first one's host that a signal which asks them to stop has ended, by time."""
    asked = [h for h in processes.values() if h.gone and signal_of(trace.ranks[h.rank]) is not None]
    asked.sort(key=lambda h: (h.end_ns, h.rank))
    return [h for h in asked if _on_host_of(h, asked[0], trace)]


def outlived(told: frozenset[int], processes: Mapping[int, ProcessState], trace: Trace) -> bool:
    """Whether no fewer than were told have lived on for longer than anybody takes to stop."""
    rest = [process for rank, process in processes.items() if rank not in told]
    if not told or len(rest) < len(told):
        return False
    lived_on_ns = max(_last_seen_ns(h, trace) for h in rest) - min(
        processes[r].end_ns for r in told
    )
    return lived_on_ns > trace.timeout_s * _SECOND_NS


def were_interrupted(told: frozenset[int], trace: Trace) -> bool:
    """Whether Ctrl-C is what these were told by."""
    return any(trace.ranks[rank].was_interrupted for rank in told)


def _was_asked(process: ProcessState, trace: Trace) -> bool:
    """Whether a signal that asks a process to stop has ended it, and it is known when exactly."""
    exact = process.end is End.TORN_DOWN and process.end_ns % _SECOND_NS
    return bool(exact) and signal_of(trace.ranks[process.rank]) is not None


def signal_of(facts: RankFacts) -> int | None:
    """The signal that asked a rank to stop and ended it."""
    exit_ = facts.exit
    return exit_.signal if exit_ is not None and exit_.signal in _ASKING else None


def _is_told_with(
    process: ProcessState, first: ProcessState, trace: Trace, *, at_once: bool
) -> bool:
    """Whether the same signal ended a rank at the same moment on the same host.

    Ctrl-C shows whenever Python runs the next time. Who stops one after the other (not
    ``at_once``) takes the time that it takes.
    """
    if not _on_host_of(process, first, trace):
        return False
    if trace.ranks[first.rank].was_interrupted:
        return trace.ranks[process.rank].was_interrupted
    soon = process.end_ns - first.end_ns <= AT_ONCE_NS
    same = signal_of(trace.ranks[process.rank]) == signal_of(trace.ranks[first.rank])
    return same and (soon or not at_once)


def _heard_nothing(process: ProcessState, trace: Trace) -> bool:
    """Whether a rank has run no Python since, as far as is known: it was killed, or lives on."""
    exit_, exception = trace.ranks[process.rank].exit, trace.ranks[process.rank].exception
    killed = exit_ is None or exit_.kind in ("signal", "oom", "unknown")
    return killed and (exception is None or not exception.is_main_thread)


def _untold(process: ProcessState, trace: Trace) -> frozenset[int] | None:
    exit_ = trace.ranks[process.rank].exit
    return exit_.untold if exit_ is not None else None


def _on_host_of(process: ProcessState, other: ProcessState, trace: Trace) -> bool:
    return trace.ranks[process.rank].host == trace.ranks[other.rank].host


def _came_later(process: ProcessState, told: ProcessState, trace: Trace) -> bool:
    """Whether a rank has not ended, or by nothing that another one may have been stopped for.

    It notes itself when an exception is raised; of other failures somebody has to take notice.
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
