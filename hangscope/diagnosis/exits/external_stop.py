"""Whether all ranks were ended from outside at once: then no end is a rank's own doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hangscope.diagnosis.exits.primary_failures import left_by_itself
from hangscope.diagnosis.exits.shared_stop_signals import (
    AT_ONCE_NS,
    outlived,
    signal_of,
    signalled_alone,
    signalled_together,
)
from hangscope.diagnosis.graph.places import INIT
from hangscope.diagnosis.processes.failures import lost_a_peer
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.frontier import Frontiers
from hangscope.diagnosis.records.pace import last_moved_ns, standstill_s
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import RankFacts, Trace
from hangscope.trace.signals import FAULTS, SIGABRT, SIGTERM, codes_of, name_of
from hangscope.trace.units import SECOND_NS

UNSEEN = "a signal nobody saw"
STATUS = "exit status "
"""With the status: something other than Python ended every rank for reasons of its own."""
TOGETHER_NS = 5 * SECOND_NS
NOTICED_LATE_NS = 2 * SECOND_NS
"""Heartbeats come about once a second: an unobserved end is known no better than that."""


@dataclass(frozen=True, slots=True)
class Stop:
    """What ended a job from outside."""

    way: str
    """The signal's name, `UNSEEN`, or `STATUS` with the status."""
    told_ns: int = 0
    """When several ranks were ended at one moment, if the rest took longer: nothing after that
    counts. 0 if all ended at about the same time."""


def external_stop(
    trace: Trace, front: Frontiers, processes: Mapping[int, ProcessState]
) -> Stop | None:
    """What ended every rank from outside; None if nothing did."""
    way = killed_together(trace, processes) or _exited_together(trace, front, processes)
    if way is not None:
        return Stop(way)
    signalled = signalled_together(processes, trace)
    if not signalled or outlived(signalled, processes, trace):
        return None
    signal = min(s for rank in signalled if (s := signal_of(trace.ranks[rank])))
    return Stop(name_of(signal), min(processes[rank].end_ns for rank in signalled))


def killed_together(trace: Trace, processes: Mapping[int, ProcessState]) -> str | None:
    """The signal by which every rank was ended from outside at about the same time, if so.

    If only one rank left anything, its unobserved end counts as well: how it ended is as unknown as
    what became of the others. So does a signal if it was only waiting for the others in a
    rendezvous.
    """
    alone = len(processes) < 2
    if (alone and not trace.missing_ranks) or signalled_alone(processes, trace) is not None:
        return None
    ways, ended_ns = [], {}
    for rank, process in processes.items():
        if _reacted_to_stop(trace.ranks[rank], process):
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
        # An unobserved end may be like the others, unless those were a launcher's reaction.
        ways = [own for own in ways if own != {UNSEEN}] or ways
    common = frozenset.intersection(*ways) if ways else frozenset()
    meeting = all(_was_meeting(trace.ranks[rank]) for rank in processes)
    if not common or (alone and common != {UNSEEN} and not meeting):
        return None
    times = ended_ns.values()
    if times and max(times) - min(times) > TOGETHER_NS:
        return None
    return None if _some_ended_first(trace, ended_ns) else min(common)


def _reacted_to_stop(facts: RankFacts, process: ProcessState) -> bool:
    """Whether a rank told to stop exited in its own way, or raised as the others went: its time of
    end then shows nothing."""
    if process.end is not End.TORN_DOWN:
        return False
    return left_by_itself(facts) or (_raised(facts) and not facts.was_interrupted)


def _way_of_its_own(facts: RankFacts) -> list[frozenset[str]]:
    """The possible stop signals of such a rank, if its status shows them."""
    asked = facts.exit is not None and facts.exit.code in codes_of(SIGTERM)
    return [frozenset({"SIGTERM"})] if asked and left_by_itself(facts) else []


def _exited_together(
    trace: Trace, front: Frontiers, processes: Mapping[int, ProcessState]
) -> str | None:
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
    if not min(times) or max(times) - min(times) > AT_ONCE_NS:
        return None
    return f"{STATUS}{code}" if bool((front.pending > 0).any()) else None


def _was_meeting(facts: RankFacts) -> bool:
    """Whether a rank was last waiting for the others in a rendezvous."""
    return bool(facts.phases) and facts.phases[-1].name == INIT


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


def _some_ended_first(trace: Trace, ended_ns: Mapping[int, int]) -> bool:
    """Whether some ranks ended when the job broke, and all others lived on well beyond that.

    A job killed all at once moves until then, or has stood still for long before the first end.
    """
    broken = _broken_ns(trace)
    if broken is None or len(ended_ns) < 2:
        return False
    broken_ns, outlived_ns = broken
    early = sum(end_ns <= broken_ns + SECOND_NS for end_ns in ended_ns.values())
    late = sum(end_ns >= outlived_ns for end_ns in ended_ns.values())
    return 0 < early < late and early + late == len(ended_ns)


def _broken_ns(trace: Trace) -> tuple[int, int] | None:
    """When the job broke, and until when surviving ranks observed that; None if unknown.

    It broke when connections of a rank were closed on some thread of another one, else when nothing
    moved any more.
    """
    failures = [f.exception for f in trace.ranks.values() if f.exception is not None]
    lost = [failure.at_ns for failure in failures if failure.at_ns and lost_a_peer(failure)]
    if lost:
        return min(lost), min(lost) + NOTICED_LATE_NS
    moved_ns = max(last_moved_ns(trace).values(), default=0)
    return (moved_ns, moved_ns + int(standstill_s(trace) * SECOND_NS)) if moved_ns else None
