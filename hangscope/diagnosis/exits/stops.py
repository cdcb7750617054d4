"""Who was told to stop, and by whom: everybody from outside, or one rank or host alone.

A launcher answers a failure with SIGTERM, too, but after it. Not all ranks that are told end, or
show it, at once: schedulers ask first and kill later, a rank with a handler saves in the meantime,
one that ignores the signal fails when it loses the others, and a thread inside C++ does not notice
Ctrl-C at all. What a monitor saw pending in the kernel as the first rank ended decides before any
times do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hangscope.diagnosis.graph.places import INIT
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import RankFacts, Trace
from hangscope.trace.signals import FAULTS, SIGABRT, SIGHUP, SIGINT, SIGTERM, codes_of, name_of
from hangscope.trace.units import SECOND_NS

UNSEEN = "a signal nobody saw"
STATUS = "exit status "
"""With the status: something other than Python ended every rank for reasons of its own."""
TOGETHER_NS = 5 * SECOND_NS
NOTICED_LATE_NS = 2 * SECOND_NS
"""Heartbeats come about once a second: an unobserved end is known no better than that."""
ANSWERED_NS = SECOND_NS
"""A launcher that reacts to a failure stops nobody this long before it."""
_NOTICED_NS = SECOND_NS // 10
"""A peer's connection may break this long before its end is noticed; a launcher's reaction takes
longer."""
_AT_ONCE_NS = SECOND_NS // 10
"""Processes told to stop at one moment are gone within this time; up to 70 ms was observed."""
_PASSED_ON_NS = SECOND_NS // 20
"""A launcher told to stop passes that on to all its ranks within this time; up to 32 ms was
observed."""
_ASKING = (SIGTERM, SIGINT, SIGHUP)

Processes = Mapping[int, ProcessState]


@dataclass(frozen=True, slots=True)
class Stop:
    """What ended a job from outside."""

    way: str
    """The signal's name, `UNSEEN`, or `STATUS` with the status."""
    told_ns: int = 0
    """When several ranks were ended at one moment, if the rest took longer: nothing after that
    counts. 0 if all ended at about the same time."""


def external_stop(trace: Trace, front: Frontiers, processes: Processes) -> Stop | None:
    """What ended every rank from outside; None if nothing did."""
    way = _killed_together(trace, processes) or _exited_together(trace, front, processes)
    if way is not None:
        return Stop(way)
    told = _signalled_together(processes, trace)
    if not told or _outlived(told, processes, trace):
        return None
    signal = min(s for rank in told if (s := signal_of(trace.ranks[rank])))
    return Stop(name_of(signal), min(processes[rank].end_ns for rank in told))


def with_isolated_stops(
    processes: dict[int, ProcessState], trace: Trace
) -> dict[int, ProcessState]:
    """A single rank or host that was told to stop before anybody else had ended is no victim.

    A launcher tells all of its ranks; a preemption notice, an operator or a limit may hit one. They
    may also hit several, if the others live on.
    """
    together = _signalled_together(processes, trace)
    if together:
        interrupted = any(trace.ranks[rank].was_interrupted for rank in together)
        alone = _outlived(together, processes, trace) and not interrupted
        return _as_failed(processes, together) if alone else processes
    torn = [
        process
        for rank, process in processes.items()
        if process.end is End.TORN_DOWN and not _by_launcher(trace.ranks[rank])
    ]
    if not torn or len(processes) < 2 or trace.missing_ranks:
        return processes
    first = min(torn, key=_time)
    told = _told_alone(first, processes, trace)
    rest = [process for rank, process in processes.items() if rank not in told]
    if any(h in torn or h.state == "stopped" for h in rest):
        return processes  # a stopped one survives a signal that all may have been sent
    if any(h.gone and _ended_before(h, first, trace) for h in rest):
        return processes
    return _as_failed(processes, told)


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


def signalled_alone(processes: Processes, trace: Trace) -> int | None:
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


def signal_of(facts: RankFacts) -> int | None:
    """The stop signal that ended a rank.

    A rank records its interrupt before it ends, and may end with a status instead.
    """
    seen = facts.exit.signal if facts.exit is not None else None
    if seen is None and facts.was_interrupted:
        return SIGINT
    return seen if seen in _ASKING else None


def left_by_itself(facts: RankFacts) -> bool:
    """Whether it ended with a status of its own."""
    exit_ = facts.exit
    return exit_ is not None and exit_.kind in ("code", "exception") and exit_.signal is None


def _signalled_together(processes: Processes, trace: Trace) -> frozenset[int]:
    """Ranks that a signal meant for all ended before anybody else had failed.

    Several ranks of one host at one moment qualify; so does one interrupted rank if no other could
    have shown an interrupt. A launcher's reaction to a failure is about as fast, but the failure
    comes first; and if one rank was signalled alone, most others raise as they lose it. One whole
    host out of several was told on its own, which does not qualify. Logs have whole seconds, so
    they do not show what happened at one moment.
    """
    ranks = trace.ranks
    asked = [
        h
        for h in processes.values()
        if h.end is End.TORN_DOWN and h.end_ns % SECOND_NS and signal_of(ranks[h.rank]) is not None
    ]
    if trace.missing_ranks or not asked or signalled_alone(processes, trace) is not None:
        return frozenset()
    first = min(asked, key=_time)
    interrupted = ranks[first.rank].was_interrupted
    one_by_one = _one_after_the_other(processes, trace)

    def told_with_first(process: ProcessState) -> bool:
        facts = ranks[process.rank]
        if interrupted or facts.host != ranks[first.rank].host:
            return facts.host == ranks[first.rank].host and facts.was_interrupted
        soon = one_by_one or process.end_ns - first.end_ns <= _AT_ONCE_NS
        return soon and signal_of(facts) == signal_of(ranks[first.rank])

    exit_ = ranks[first.rank].exit
    sent = exit_.signalled if exit_ is not None else frozenset()
    # It was sent to these, too, when it ended the first, and will end them.
    told = frozenset(r for r in sent if r in processes and not processes[r].gone)
    told |= {h.rank for h in asked if told_with_first(h)}
    rest = [process for rank, process in processes.items() if rank not in told]
    here = [process for process in rest if ranks[process.rank].host == ranks[first.rank].host]
    if (rest and not here) or not all(_came_later(process, first, trace) for process in rest):
        return frozenset()
    raised = sum(ranks[process.rank].exception is not None for process in rest)
    several = len(told) > 1 and (one_by_one or len(told) > 2 * raised)
    deaf = len(here) == len(rest) and all(_ran_no_python(ranks[h.rank]) for h in rest)
    return told if several or (deaf and interrupted) else frozenset()


def _one_after_the_other(processes: Processes, trace: Trace) -> bool:
    """Whether some ranks had been told to stop, and others not yet, when the first or second one
    ended.

    A launcher tells all at once. A rank that handles the signal, or fails as it loses the first
    one, did not end because of it but may have been told nevertheless.
    """
    first, *later = _asked_on_one_host(processes, trace) or (None,)
    exit_ = trace.ranks[first.rank].exit if first is not None else None
    if exit_ is None:
        return False
    before, after = exit_.not_signalled, _not_signalled(later[0], trace) if later else None
    told = {h.rank for h in later} | exit_.signalled
    return bool((before and told - before) or (after and len(later) > 1))


def _asked_on_one_host(processes: Processes, trace: Trace) -> list[ProcessState]:
    """Ranks of the first one's host that a stop signal ended, by time."""
    asked = [h for h in processes.values() if h.gone and signal_of(trace.ranks[h.rank]) is not None]
    asked.sort(key=_time)
    return [h for h in asked if trace.ranks[h.rank].host == trace.ranks[asked[0].rank].host]


def _outlived(told: frozenset[int], processes: Processes, trace: Trace) -> bool:
    """Whether at least as many ranks as were told lived on for longer than any rank needs to
    stop."""
    rest = [process for rank, process in processes.items() if rank not in told]
    if len(rest) < len(told):
        return False
    seen_ns = [
        h.end_ns if h.gone else trace.observed_ns if trace.live else trace.ranks[h.rank].observed_ns
        for h in rest
    ]
    first_ns = min(processes[r].end_ns for r in told if processes[r].gone)
    return max(seen_ns) - first_ns > trace.timeout_s * SECOND_NS


def _ran_no_python(facts: RankFacts) -> bool:
    """Whether a rank has run no Python since, as far as known: it was killed, or lives on."""
    killed = facts.exit is None or facts.exit.kind in ("signal", "oom", "unknown")
    return killed and not _raised(facts)


def _not_signalled(process: ProcessState, trace: Trace) -> frozenset[int] | None:
    exit_ = trace.ranks[process.rank].exit
    return exit_.not_signalled if exit_ is not None else None


def _came_later(process: ProcessState, told: ProcessState, trace: Trace) -> bool:
    """Whether a rank has not ended, or not because of anything that may have stopped another one.

    A rank records when it raises an exception itself; other failures are noticed by somebody else.
    """
    if not process.gone or process.end is End.TORN_DOWN:
        return True
    after_ns = ANSWERED_NS if process.end is End.CRASHED else 0
    if process.end is End.CRASHED and trace.ranks[process.rank].exception is not None:
        after_ns = -_NOTICED_NS if process.secondary else 0
    return process.end_ns > told.end_ns + after_ns


def _told_alone(first: ProcessState, processes: Processes, trace: Trace) -> set[int]:
    """The ranks told to stop with the first one: all of its host at one moment, or it alone."""
    name = trace.ranks[first.rank].host
    here = {rank for rank in processes if trace.ranks[rank].host == name}
    at_once = all(
        processes[r].end is End.TORN_DOWN
        and 0 < processes[r].end_ns - first.end_ns + 1 <= _PASSED_ON_NS
        for r in here
    )
    together = name and at_once and len(here) < len(processes)
    return here if together and signalled_alone(processes, trace) is None else {first.rank}


def _ended_before(process: ProcessState, alone: ProcessState, trace: Trace) -> bool:
    """Whether a rank's end may be the reason another one was stopped.

    An end without a time may be. A launcher reacts to ends it has seen; clocks of other hosts say
    nothing about that.
    """
    if not process.end_ns:
        return True
    if process.secondary:
        return process.end_ns < alone.end_ns - _NOTICED_NS
    here = trace.ranks[process.rank].host == trace.ranks[alone.rank].host
    return not here or process.end_ns < alone.end_ns + _NOTICED_NS


def _killed_together(trace: Trace, processes: Processes) -> str | None:
    """The signal by which every rank was ended from outside at about the same time, if so.

    If only one rank left anything, its unobserved end counts as well: how it ended is as unknown as
    what became of the others. So does a signal if it was only waiting for the others in a
    rendezvous.
    """
    alone = len(processes) < 2
    if (alone and not trace.missing_ranks) or signalled_alone(processes, trace) is not None:
        return None
    ways: list[frozenset[str]] = []
    ended_ns: list[int] = []
    for rank, process in processes.items():
        facts = trace.ranks[rank]
        reacted = left_by_itself(facts) or (_raised(facts) and not facts.was_interrupted)
        if process.end is End.TORN_DOWN and reacted:
            # It was told, and exited in its own way, or raised as the others went: its time shows
            # nothing, its status perhaps.
            asked = facts.exit is not None and facts.exit.code in codes_of(SIGTERM)
            ways += [frozenset({"SIGTERM"})] if asked and left_by_itself(facts) else []
            continue
        if process.end not in (End.CRASHED, End.TORN_DOWN) or not (own := _ways(facts)):
            return None
        ways.append(own)
        ended_ns += [process.end_ns] if process.end_ns else []
    if not any(_by_launcher(trace.ranks[rank]) for rank in processes):
        # An unobserved end may be like the others, unless those were a launcher's reaction.
        ways = [own for own in ways if own != {UNSEEN}] or ways
    common = frozenset.intersection(*ways) if ways else frozenset()
    meeting = all(f.phases and f.phases[-1].name == INIT for f in trace.ranks.values())
    if not common or (alone and common != {UNSEEN} and not meeting):
        return None
    apart_ns = max(ended_ns, default=0) - min(ended_ns, default=0)
    return min(common) if apart_ns <= NOTICED_LATE_NS else None


def _exited_together(trace: Trace, front: Frontiers, processes: Processes) -> str | None:
    """The status, if every rank exited with it at one moment without a message, some from within a
    collective.

    Python does not exit while it waits in a collective: something else ended the process, as Ray
    workers end when their driver is gone.
    """
    exits = [trace.ranks[rank].exit for rank in processes]
    codes = {e.code if e is not None and e.text == WITHOUT_A_WORD else None for e in exits}
    if len(processes) < 2 or len(codes) != 1 or not (code := codes.pop()):
        return None
    times = [process.end_ns for process in processes.values()]
    if not min(times) or max(times) - min(times) > _AT_ONCE_NS:
        return None
    return f"{STATUS}{code}" if bool((front.pending > 0).any()) else None


def _ways(facts: RankFacts) -> frozenset[str]:
    """Ways in which a rank may have been ended from outside; empty if its end was its own.

    A rank that survives an interrupt is killed a moment later.
    """
    exit_ = facts.exit
    if _raised(facts) and not facts.was_interrupted:
        return frozenset()
    if exit_ is not None and (exit_.kind == "oom" or exit_.signal in FAULTS):
        return frozenset()
    interrupted = frozenset({"SIGINT"} if facts.was_interrupted else ())
    if exit_ is None or (exit_.kind == "unknown" and exit_.signal is None):
        return interrupted or frozenset({UNSEEN})
    if exit_.signal is None or exit_.signal == SIGABRT:
        return interrupted  # only the process itself aborts it
    return interrupted | {name_of(exit_.signal)}


def _raised(facts: RankFacts) -> bool:
    """Whether an exception ended the process, not just a thread."""
    return facts.exception is not None and facts.exception.is_main_thread


def _by_launcher(facts: RankFacts) -> bool:
    return facts.exit is not None and facts.exit.by_launcher


def _time(process: ProcessState) -> tuple[int, int]:
    return process.end_ns, process.rank


def _as_failed(processes: dict[int, ProcessState], ranks: Iterable[int]) -> dict[int, ProcessState]:
    failed = {r: replace(processes[r], end=End.CRASHED, secondary=False) for r in ranks}
    return {**processes, **failed}
