"""Whether all ranks were ended from outside at once: then no end is anybody's own doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hangscope.diagnosis.exits.primary_failures import left_by_itself
from hangscope.diagnosis.exits.shared_stop_signals import (
    AT_ONCE_NS,
    outlived,
    signal_of,
    told_alone,
    told_together,
)
from hangscope.diagnosis.graph.places import INIT
from hangscope.diagnosis.processes.failure_messages import lost_a_peer
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.records.pace import last_moved_ns, standstill_s
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import RankFacts, Trace
from hangscope.trace.signals import FAULTS, SIGABRT, SIGTERM, codes_of, name_of

UNSEEN = "a signal nobody saw"
STATUS = "exit status "
"""With the status: something that is no Python, and knows why, has ended every rank."""
_SECOND_NS = 1_000_000_000
TOGETHER_NS = 5 * _SECOND_NS
NOTICED_LATE_NS = 2 * _SECOND_NS
"""Heartbeats come once a second or so: of an end that nobody saw no more than that is known."""


@dataclass(frozen=True, slots=True)
class Stop:
    """What ended a job from outside."""

    way: str
    """The signal's name, `UNSEEN`, or `STATUS` with the status."""
    told_ns: int = 0
    """When several were ended at one moment, if the rest took longer: what came later counts for
    nobody. 0 where all ended at about the same time."""


def stop_of(trace: Trace, front: Frontiers, processes: Mapping[int, ProcessState]) -> Stop | None:
    """What ended every rank from outside; None where that is not so."""
    way = killed_together(trace, processes) or _left_together(trace, front, processes)
    if way is not None:
        return Stop(way)
    told = told_together(processes, trace)
    if not told or outlived(told, processes, trace):
        return None
    signal = min(s for rank in told if (s := signal_of(trace.ranks[rank])))
    return Stop(name_of(signal), min(processes[rank].end_ns for rank in told))


def killed_together(trace: Trace, processes: Mapping[int, ProcessState]) -> str | None:
    """How, if every rank was ended from outside by one signal at about the same time.

    Of one rank alone only an end that nobody saw says so, and only where the others left nothing:
    how it ended is known as little as what became of them. So does a signal where it had only come
    to wait for those others to meet it.
    """
    alone = len(processes) < 2
    if (alone and not trace.missing_ranks) or told_alone(processes, trace) is not None:
        return None
    ways, ended_ns = [], {}
    for rank, process in processes.items():
        if _came_of_the_stop(trace.ranks[rank], process):
            ways += _way_of_its_own(trace.ranks[rank])
            continue
        own = (
            _ways(trace.ranks[rank]) if process.end in (End.CRASHED, End.TORN_DOWN) else frozenset()
        )
        if not own:
            return None
        ways.append(own)
        if process.end_ns:
            ended_ns[rank] = process.end_ns
    ends = [trace.ranks[rank].exit for rank in processes]
    if not any(end is not None and end.by_launcher for end in ends):
        # One that nobody saw may be the same as the others, unless those were a launcher's answer.
        ways = [own for own in ways if own != {UNSEEN}] or ways
    common = frozenset.intersection(*ways) if ways else frozenset()
    meeting = all(_was_meeting(trace.ranks[rank]) for rank in processes)
    if not common or (alone and common != {UNSEEN} and not meeting):
        return None
    times = ended_ns.values()
    if times and max(times) - min(times) > TOGETHER_NS:
        return None
    return None if _some_ended_first(trace, ended_ns) else min(common)


def _came_of_the_stop(facts: RankFacts, process: ProcessState) -> bool:
    """Whether a rank that was told to stop left in a way of its own, or raised as the others went:
    when it ended tells nothing."""
    if process.end is not End.TORN_DOWN:
        return False
    return left_by_itself(facts) or (_raised(facts) and not facts.was_interrupted)


def _way_of_its_own(facts: RankFacts) -> list[frozenset[str]]:
    """By what such a rank was told to stop, where its status tells."""
    asked = facts.exit is not None and facts.exit.code in codes_of(SIGTERM)
    return [frozenset({"SIGTERM"})] if asked and left_by_itself(facts) else []


def _left_together(
    trace: Trace, front: Frontiers, processes: Mapping[int, ProcessState]
) -> str | None:
    """The status, if every rank left with it at one moment without a word, some of them from within
    a collective.

    Python does not leave while it waits in one: something beside it has ended the process, as
    workers of Ray end when their driver is gone.
    """
    exits = [trace.ranks[rank].exit for rank in processes]
    codes = {e.code if e is not None and e.text == WITHOUT_A_WORD else None for e in exits}
    if len(processes) < 2 or len(codes) != 1 or not (code := codes.pop()):
        return None
    times = [process.end_ns for process in processes.values()]
    if not min(times) or max(times) - min(times) > AT_ONCE_NS:
        return None
    return f"{STATUS}{code}" if bool((front.pending > 0).any()) else None


def _was_meeting(facts: RankFacts) -> bool:
    """Whether the last thing that a rank did was to wait for the others to meet it."""
    return bool(facts.phases) and facts.phases[-1].name == INIT


def _ways(facts: RankFacts) -> frozenset[str]:
    """By what a rank may have been ended from outside; none where the end was its own.

    Who is interrupted and does not end of that is killed a moment later.
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
        return interrupted  # a process aborts itself
    return interrupted | {name_of(exit_.signal)}


def _raised(facts: RankFacts) -> bool:
    """Whether an exception ended the process; a thread's end is not the process's."""
    return facts.exception is not None and facts.exception.is_main_thread


def _some_ended_first(trace: Trace, ended_ns: Mapping[int, int]) -> bool:
    """Whether some had ended when the job broke, and all others outlived that well.

    A job that is killed at once moves until then, or has stood still for long before the first end.
    """
    broken = _broken_ns(trace)
    if broken is None or len(ended_ns) < 2:
        return False
    broken_ns, outlived_ns = broken
    early = sum(end_ns <= broken_ns + _SECOND_NS for end_ns in ended_ns.values())
    late = sum(end_ns >= outlived_ns for end_ns in ended_ns.values())
    return 0 < early < late and early + late == len(ended_ns)


def _broken_ns(trace: Trace) -> tuple[int, int] | None:
    """When the job broke, and until when who lived has seen it so; None where nothing tells.

    It broke when a rank's connections were closed on some thread of another one, or else when
    nothing moved any more.
    """
    failures = [f.exception for f in trace.ranks.values() if f.exception is not None]
    lost = [failure.at_ns for failure in failures if failure.at_ns and lost_a_peer(failure)]
    if lost:
        return min(lost), min(lost) + NOTICED_LATE_NS
    moved_ns = max(last_moved_ns(trace).values(), default=0)
    return (moved_ns, moved_ns + int(standstill_s(trace) * _SECOND_NS)) if moved_ns else None
