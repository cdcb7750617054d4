"""Early notices: a wait that is long for this job, said long before it counts as a hang.

What is usual is learnt from the job itself: how long its ranks have waited before at the same call
site in the same group. A notice names what is seen and accuses nobody; it is taken back in one line
if the job goes on. Pure logic over the looks of a live monitor.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from hangscope.diagnosis.duration_text import duration
from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.graph.places import INIT
from hangscope.diagnosis.model import Confidence, Diagnosis, Finding, Verdict
from hangscope.diagnosis.processes.stacks import base, innermost
from hangscope.diagnosis.waiting.without_timeout import LEAST_S, anybody_waits
from hangscope.monitor.patience import UNUSUAL, limit_s, usual_s, waiting_of
from hangscope.trace.model import State, Trace
from hangscope.trace.rank_text import named

_NOTABLE = frozenset(
    {Verdict.MISSING_RANK, Verdict.STUCK_COLLECTIVE, Verdict.P2P_UNMATCHED, Verdict.DEADLOCK_CYCLE}
)
_OF_TORCH = re.compile(
    r"store\..*|init_process_group|destroy_process_group|(?:new|split|shrink)_group"
)
"""Phases that the recorder notes itself: waits, not work that the job announces."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One early word: which wait, and the line that says so."""

    culprits: tuple[int, ...]
    """Whom the line names; nobody if it cannot be decided."""
    waits: frozenset[tuple[int, int]]
    """As `Waiting.places`."""
    since_ns: int
    waited_s: float
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
    _said_s: dict[tuple[int, ...], float] = field(default_factory=dict)
    """How long the waits were that have been noticed for each set of ranks."""

    def early(self, trace: Trace) -> Diagnosis | None:
        """What the evidence says if a wait of `LEAST_S` already counts; None if all is well."""
        if not self.enabled or trace.timeout_s <= LEAST_S or not anybody_waits(trace):
            return None  # a second diagnosis in every look would double the monitor's cost
        found = diagnose(replace(trace, timeout_s=LEAST_S))
        return found if found.findings and found.verdict in _NOTABLE else None

    def superseded(self) -> None:
        """A verdict takes the place of the notice."""
        self._open = self._candidate = None

    def over(self, trace: Trace) -> str | None:
        """The line that takes a notice back, once its wait is over.

        ``trace`` may lack ranks of other nodes: those that are seen decide.
        """
        notice = self._open
        if notice is None or _still_waiting(trace, notice):
            return None
        self._open = None
        waited_s = (trace.observed_ns - notice.since_ns) / 1e9
        self._said_s[notice.finding.culprits] = waited_s
        whom = f" for {named(notice.culprits)}" if notice.culprits else ""
        return f"the job goes on: the wait{whom} is over after {duration(waited_s)}"

    def line(
        self, trace: Trace, early: Diagnosis | None, busy: Collection[int] = ()
    ) -> str | Notice | None:
        """What to print after this look: a notice, the line that takes one back, or nothing.

        A wait is noticed when two looks in a row have found it, and one that is not much longer
        than those before it for the same ranks is not noticed again.

        Parameters
        ----------
        trace, early:
            The look, and what `early` says of it.
        busy:
            Ranks whose helper processes are at work.
        """
        if (over := self.over(trace)) is not None:
            return over
        found = _noticed(trace, early, busy) if early is not None else None
        before, self._candidate = self._candidate, found
        if found is None or before is None or before.waits != found.waits:
            return None
        awaited = found.finding.culprits
        if found.waited_s < UNUSUAL * self._said_s.get(awaited, 0.0):
            return None
        if self._open is not None and self._open.finding.culprits == awaited:
            return None
        self._open = found
        self._said_s[awaited] = found.waited_s
        return found


def _noticed(trace: Trace, early: Diagnosis, busy: Collection[int]) -> Notice | None:
    """The notice on the first finding, if its wait is long for this job."""
    finding = early.findings[0]
    waiting = waiting_of(trace, finding.victims)
    if not waiting.ranks or _in_a_phase(trace, finding):
        return None
    waited_s = (trace.observed_ns - waiting.since_ns) / 1e9
    usual = usual_s(trace, waiting)
    if waited_s < limit_s(trace, waiting, finding.culprits, usual, busy):
        return None
    is_tie = not finding.culprits or finding.confidence is Confidence.AMBIGUOUS
    culprits = () if is_tie else finding.culprits
    line = _line(trace, finding, culprits, len(waiting.ranks), waited_s, usual)
    return Notice(culprits, waiting.places, waiting.since_ns, waited_s, line, finding)


def _line(
    trace: Trace,
    finding: Finding,
    culprits: tuple[int, ...],
    ranks: int,
    waited_s: float,
    usual_s: float | None,
) -> str:
    have = f"{ranks} rank{'s have' if ranks > 1 else ' has'} waited {duration(waited_s)}"
    usual = f" (usually {duration(usual_s)} at most)" if usual_s is not None else ""
    number = f" #{finding.seq}" if finding.seq else ""
    what = f"{finding.op or INIT}{number}"
    if not culprits:
        summary = finding.summary
        return f"{have} in {what}{usual}: {summary[0].lower()}{summary[1:]}"
    place = _whereabouts(trace, culprits[0])
    return f"{have} for {named(culprits, 40)} in {what}{usual}" + (f": {place}" if place else "")


def _in_a_phase(trace: Trace, finding: Finding) -> bool:
    """Whether the job has said what the awaited ranks are doing (``hangscope.phase``)."""
    awaited = [trace.ranks[rank] for rank in finding.culprits if rank in trace.ranks]
    return any(
        facts.leaving is None and not _OF_TORCH.fullmatch(facts.phases[-1].name)
        for facts in awaited
        if facts.phases
    )


def _whereabouts(trace: Trace, rank: int) -> str:
    """``rank 2 is in load_batch, data.py:41``; empty if no stack of it is known."""
    facts = trace.ranks.get(rank)
    frame = innermost(facts.main_stack) if facts is not None else None
    return f"rank {rank} is in {frame.name}, {base(frame.filename)}:{frame.line}" if frame else ""


def _still_waiting(trace: Trace, notice: Notice) -> bool:
    """Whether any of the noticed waits is not over."""
    if trace.ranks.keys().isdisjoint(rank for rank, _ in notice.waits):
        return True  # nothing is seen of them
    records = trace.records[trace.records["state"] != int(State.COMPLETED)]
    left = set(zip(records["rank"].tolist(), records["record_id"].tolist(), strict=True))
    left |= {(r, -p.since_ns) for r, facts in trace.ranks.items() for p in facts.phases}
    return bool(left & notice.waits)
