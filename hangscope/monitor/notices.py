"""Early notices: a wait that is long for this job, said long before it counts as a hang.

What is usual is learnt from the job itself: how long its ranks have waited before at the same call
site in the same group. A notice names what is seen and accuses nobody; it is taken back in one line
if the job goes on. Pure logic over the looks of a live monitor.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from hangscope.diagnosis.duration_text import duration
from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Finding, Verdict
from hangscope.diagnosis.processes.stacks import base, innermost
from hangscope.report.ranks import named
from hangscope.trace.model import Records, State, Trace

LEAST_S = 5.0
"""A shorter wait is nobody's business, however unusual."""
UNKNOWN_S = 9.0
"""The same where nothing tells what is usual."""
UNUSUAL = 3.0
"""A wait is unusual if it lasts this many times longer than any before it."""
PASSES = 3
"""So often must a call site have been passed before it tells what is usual."""
BUSY = 0.5
"""CPU seconds per second with which the awaited rank counts as at work."""
_AT_WORK = 2.0
"""How many times longer a rank that is at work may keep the others waiting."""
_NOTABLE = frozenset(
    {Verdict.MISSING_RANK, Verdict.STUCK_COLLECTIVE, Verdict.P2P_UNMATCHED, Verdict.DEADLOCK_CYCLE}
)

Place = tuple[int, int]
"""Group and sequence number of a collective, or of a send or recv."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One early word: which wait, and the line that says so."""

    culprits: tuple[int, ...]
    waits: tuple[tuple[int, int], ...]
    """Rank and record id of the waiting operations."""
    line: str
    finding: Finding


@dataclass(slots=True)
class Notices:
    """What has been noticed and not yet taken back.

    Parameters
    ----------
    enabled:
        ``HANGSCOPE_NOTICE`` is not 0.
    """

    enabled: bool = True
    _candidate: Notice | None = None
    _open: Notice | None = None
    _since_ns: int = 0
    _said: set[tuple[int, ...]] = field(default_factory=set)

    def early(self, trace: Trace) -> Diagnosis | None:
        """What the evidence says if a wait of `LEAST_S` already counts; None if all is well."""
        if not self.enabled or trace.timeout_s <= LEAST_S or not _anybody_waits(trace):
            return None  # a second diagnosis in every look would double the monitor's cost
        found = diagnose(replace(trace, timeout_s=LEAST_S))
        return found if found.findings and found.verdict in _NOTABLE else None

    def superseded(self) -> None:
        """A verdict takes the place of the notice."""
        self._open = self._candidate = None

    def line(self, trace: Trace, early: Diagnosis | None) -> str | Notice | None:
        """What to print after this look: a notice, the line that takes one back, or nothing.

        A wait is noticed when two looks in a row have found it.
        """
        if self._open is not None and not _still_waiting(trace, self._open):
            notice, self._open = self._open, None
            waited_s = (trace.observed_ns - self._since_ns) / 1e9
            whom = f" for {named(notice.culprits)}" if notice.culprits else ""
            return f"the job goes on: the wait{whom} is over after {duration(waited_s)}"
        found = _noticed(trace, early) if early is not None else None
        before, self._candidate = self._candidate, found
        if found is None or before is None or before.waits != found.waits:
            return None
        if self._open is not None or found.culprits in self._said:
            return None
        self._open, self._since_ns = found, _began_ns(trace, found)
        self._said.add(found.culprits)
        return found


def _anybody_waits(trace: Trace) -> bool:
    """Whether any operation has been unfinished for `LEAST_S`."""
    records = trace.records
    open_ = records["state"] != int(State.COMPLETED)
    since_ns = records["created_ns"][open_]
    return bool((since_ns <= trace.observed_ns - int(LEAST_S * 1e9)).any())


def needs_no_timeout(trace: Trace, early: Diagnosis) -> bool:
    """Whether waiting longer can change nothing: a circle of waits, or a stopped process."""
    first = early.findings[0]
    if first.verdict is Verdict.DEADLOCK_CYCLE:
        return first.confidence is Confidence.CERTAIN
    states = {trace.ranks[r].process_state for r in first.culprits if r in trace.ranks}
    return first.verdict is Verdict.MISSING_RANK and states == {"stopped"}


def _noticed(trace: Trace, early: Diagnosis) -> Notice | None:
    """The notice on the first finding, if its wait is long for this job."""
    finding = early.findings[0]
    waiting = _waiting(trace, finding)
    if not len(waiting) or _in_a_phase(trace, finding):
        return None
    waited_s = (trace.observed_ns - int(waiting["created_ns"].min())) / 1e9
    usual_s = _usual_s(trace, waiting)
    if waited_s < _limit_s(trace, finding, usual_s):
        return None
    ranks = tuple(sorted({int(rank) for rank in waiting["rank"]}))
    usual = f" (usually {duration(usual_s)} at most)" if usual_s is not None else ""
    number = f" #{finding.seq}" if finding.seq else ""
    what = f"{finding.op or 'an operation'}{number}"
    have = f"{len(ranks)} rank{'s have' if len(ranks) > 1 else ' has'} waited {duration(waited_s)}"
    waits = tuple(sorted((int(row["rank"]), int(row["record_id"])) for row in waiting))
    if not finding.culprits or finding.confidence is Confidence.AMBIGUOUS:
        line = f"{have} in {what}{usual}: {early.summary[0].lower()}{early.summary[1:]}"
        return Notice((), waits, line, finding)
    whom = named(finding.culprits, 40)
    place = _whereabouts(trace, finding.culprits[0])
    line = f"{have} for {whom} in {what}{usual}" + (f": {place}" if place else "")
    return Notice(finding.culprits, waits, line, finding)


def _waiting(trace: Trace, finding: Finding) -> Records:
    """The newest unfinished record of each victim."""
    records = trace.records
    victims = np.isin(records["rank"], list(finding.victims))
    open_ = records[victims & (records["state"] != int(State.COMPLETED))]
    newest = {int(row["rank"]): number for number, row in enumerate(open_)}
    found: Records = open_[sorted(newest.values())]
    return found


def _usual_s(trace: Trace, waiting: Records) -> float | None:
    """The longest finished wait at the call sites of these operations; None if hardly any."""
    records, longest = trace.records, None
    for row in waiting:
        same = (records["rank"] == row["rank"]) & (records["completed_ns"] > 0)
        for column in ("group", "signature", "stack"):
            same &= records[column] == row[column]
        took = (records["completed_ns"][same] - records["created_ns"][same]) / 1e9
        if len(took) < PASSES:
            return None
        longest = max(longest or 0.0, float(took.max()))
    return longest


def _limit_s(trace: Trace, finding: Finding, usual_s: float | None) -> float:
    """From when on the wait is worth a word."""
    awaited = [trace.ranks[rank] for rank in finding.culprits if rank in trace.ranks]
    at_work = any((facts.cpu_busy or 0.0) > BUSY or facts.stack_moved for facts in awaited)
    if usual_s is None:
        # A first step, a compilation, an evaluation: long by nature while somebody works.
        return float("inf") if at_work or not awaited else UNKNOWN_S
    return max(LEAST_S, UNUSUAL * usual_s) * (_AT_WORK if at_work else 1.0)


def _in_a_phase(trace: Trace, finding: Finding) -> bool:
    """Whether the job has said what the awaited ranks are doing (``hangscope.phase``)."""
    return any(
        trace.ranks[rank].phases and trace.ranks[rank].leaving is None
        for rank in finding.culprits
        if rank in trace.ranks
    )


def _whereabouts(trace: Trace, rank: int) -> str:
    """``rank 2 is in load_batch, data.py:41``; empty if no stack of it is known."""
    facts = trace.ranks.get(rank)
    frame = innermost(facts.main_stack) if facts is not None else None
    return f"rank {rank} is in {frame.name}, {base(frame.filename)}:{frame.line}" if frame else ""


def _still_waiting(trace: Trace, notice: Notice) -> bool:
    """Whether any of the noticed operations is still unfinished."""
    records = trace.records[trace.records["state"] != int(State.COMPLETED)]
    left = set(zip(records["rank"].tolist(), records["record_id"].tolist(), strict=True))
    return bool(left & set(notice.waits))


def _began_ns(trace: Trace, notice: Notice) -> int:
    ids = dict(notice.waits)
    records = trace.records
    times = [
        int(row["created_ns"])
        for row in records[np.isin(records["rank"], list(ids))]
        if ids[int(row["rank"])] == int(row["record_id"])
    ]
    return min(times, default=trace.observed_ns)
