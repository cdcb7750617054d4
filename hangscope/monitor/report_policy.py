"""Decides what deserves to be said: pure logic over the looks at one job.

A live job is called hung only when two looks agree: the same wait at the same place, or, where no
sequence number tells the place, nobody who waits has moved in between. What is already on record
and cannot change any more (a mismatch, a process that has ended) needs no second look. Every cause
is said once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangscope.diagnosis.model import MISMATCHES, Diagnosis, Finding, Verdict

_FINAL = MISMATCHES | {Verdict.RANK_CRASHED, Verdict.RANK_EXITED}

Cause = tuple[str, tuple[int, ...], str, int | None]


def cause_of(finding: Finding) -> Cause:
    """What makes two findings the same cause."""
    group = finding.group.name if finding.group is not None else ""
    return (finding.verdict.value, finding.culprits, group, finding.seq)


def is_on_record(diagnosis: Diagnosis) -> bool:
    """Whether what was found cannot change any more, however long anybody has waited."""
    return bool(diagnosis.findings) and diagnosis.findings[0].verdict in _FINAL


@dataclass(slots=True)
class Judge:
    """Remembers the last look and what has been said."""

    _said: set[Cause] = field(default_factory=set)
    _culprits_said: set[tuple[int, ...]] = field(default_factory=set)
    _previous: set[Cause] = field(default_factory=set)
    _previous_progress: Mapping[int, object] = field(default_factory=dict)
    _since: tuple[str, float] = ("", 0.0)
    """What the last looks have all said first, and since when."""
    spoke: bool = False
    told: bool = False
    """Another node's monitor has given the verdict on the whole job."""

    def hear(
        self,
        diagnosis: Diagnosis,
        progress: Mapping[int, object],
        *,
        final: bool,
        now_s: float = 0.0,
    ) -> bool:
        """Whether this diagnosis is to be printed now.

        Parameters
        ----------
        diagnosis:
            Of the newest look.
        progress:
            For each rank anything that differs when it issued or finished an operation since the
            last look.
        final:
            The ranks are gone: there will be no further look.
        now_s:
            The time of the look, on any clock.
        """
        causes = {cause_of(finding) for finding in diagnosis.findings}
        before, previous = self._previous_progress, self._previous
        self._previous, self._previous_progress = causes, progress
        told = diagnosis.findings[0].summary if diagnosis.findings else ""
        if told != self._since[0]:
            self._since = told, now_s
        if diagnosis.verdict is Verdict.HEALTHY or not diagnosis.findings:
            return False
        first = diagnosis.findings[0]
        cause = cause_of(first)
        if cause in self._said or first.culprits in self._culprits_said:
            return False
        if (self.told or first.verdict is Verdict.INCONCLUSIVE) and self.spoke:
            return False
        if first.unchanged_s:
            # What nothing on record dates is said only of a job that was seen to stand so long.
            return not final and now_s - self._since[1] >= first.unchanged_s
        if final:
            # After the end of a job that was already explained, the rest is aftermath.
            return not self.spoke
        if is_on_record(diagnosis):
            return True
        if first.group is not None and first.seq is not None:
            # The same wait at the same sequence number: nobody in it has moved, whatever other
            # threads of the same ranks do meanwhile.
            return cause in previous
        waiting = first.victims or first.culprits or tuple(progress)
        frozen = all(progress.get(rank) == before.get(rank) for rank in waiting)
        return cause in previous and frozen

    def hush(self) -> None:
        """The whole job has been explained elsewhere: this node's view of it adds nothing."""
        self.spoke = self.told = True

    def said(self, diagnosis: Diagnosis) -> None:
        """The diagnosis was printed."""
        self.spoke = True
        for finding in diagnosis.findings:
            self._said.add(cause_of(finding))
            if finding.culprits:
                self._culprits_said.add(finding.culprits)
