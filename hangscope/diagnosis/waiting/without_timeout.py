"""What counts as a hang on a live job before its timeout: a standstill that time cannot change."""

from __future__ import annotations

from hangscope.diagnosis.graph.places import INIT
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.model import State, Trace
from hangscope.trace.units import SECOND_NS

LEAST_S = 5.0
"""A shorter wait is nobody's business, however unusual."""


def anybody_waits(trace: Trace) -> bool:
    """Whether any operation has been unfinished for `LEAST_S`, or a rank for so long not met."""
    records, latest_ns = trace.records, trace.observed_ns - int(LEAST_S * SECOND_NS)
    open_ = records["state"] != int(State.COMPLETED)
    if bool((records["created_ns"][open_] <= latest_ns).any()):
        return True
    phases = [phase for facts in trace.ranks.values() for phase in facts.phases[-1:]]
    return any(phase.name == INIT and phase.since_ns <= latest_ns for phase in phases)


def needs_no_timeout(trace: Trace, early: Diagnosis) -> bool:
    """Whether waiting longer can change nothing: a circle of waits, or a stopped process.

    ``early`` is what the evidence says if waits of `LEAST_S` already count.
    """
    if not early.findings:
        return False
    first = early.findings[0]
    if first.verdict is Verdict.DEADLOCK_CYCLE:
        return first.confidence is Confidence.CERTAIN
    states = {trace.ranks[r].process_state for r in first.culprits if r in trace.ranks}
    return states == {"stopped"}
