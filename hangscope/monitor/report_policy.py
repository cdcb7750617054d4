"""Decides which diagnoses get printed: pure logic over successive looks at one job.

A live job is called hung only when two looks agree: the same wait at the same sequence number or,
without a sequence number, no progress by any waiting rank in between. Findings that can no longer
change (a mismatch, a process that has ended) need no second look. Every cause is reported once; of
ranks that have held the job up before, another one if it lasts twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangscope.diagnosis.model import ENDED, MISMATCHES, Diagnosis, Finding, Verdict

_FINAL = MISMATCHES | ENDED

Cause = tuple[str, tuple[int, ...], str, int | None]


def cause_of(finding: Finding) -> Cause:
    """Identity of a finding's cause: two findings with the same value are one cause."""
    group = finding.group.name if finding.group is not None else ""
    return (finding.verdict.value, finding.culprits, group, finding.seq)


def is_final(diagnosis: Diagnosis) -> bool:
    """Whether the first finding is settled by what is on record, without waiting longer."""
    return bool(diagnosis.findings) and diagnosis.findings[0].verdict in _FINAL


@dataclass(slots=True)
class ReportPolicy:
    """Remembers the last look and what has been reported."""

    _said: set[Cause] = field(default_factory=set)
    _culprits_said: set[tuple[int, ...]] = field(default_factory=set)
    _outlived: dict[tuple[int, ...], float] = field(default_factory=dict)
    """Per culprits how long, in seconds, the job was hung by them before it went on."""
    _previous: set[Cause] = field(default_factory=set)
    _previous_progress: Mapping[int, object] = field(default_factory=dict)
    _since: tuple[str, float] = ("", 0.0)
    """Summary of the first finding and since when all looks have agreed on it."""
    _settled: bool = False
    """A cause that can no longer change has been reported."""
    is_pending: bool = False
    """The last look has found something that the next one may confirm."""
    has_reported: bool = False
    is_tentative: bool = False
    """What was reported names nobody: what is found elsewhere still counts."""
    reported_elsewhere: bool = False
    """Another node's monitor has reported on the whole job."""

    def should_report(
        self,
        diagnosis: Diagnosis,
        progress: Mapping[int, object],
        *,
        final: bool,
        now_s: float = 0.0,
    ) -> bool:
        """Whether to print this diagnosis now.

        Parameters
        ----------
        diagnosis:
            Diagnosis of the newest look.
        progress:
            For each rank, any value that changes when it issues or finishes an operation.
        final:
            The ranks are gone; there will be no further look.
        now_s:
            Time of the look, on any clock.
        """
        self.is_pending = False
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
        again = first.culprits in self._culprits_said
        if cause in self._said or (again and not self._is_longer(first, now_s)):
            return False
        if (self.reported_elsewhere or first.verdict is Verdict.INCONCLUSIVE) and self.has_reported:
            return False
        if self._settled and not first.culprits:
            return False  # what cannot change any more explains more than what names nobody
        if first.unchanged_s:
            # No timestamp tells how long this has lasted, so the monitor must have seen it last.
            return not final and now_s - self._since[1] >= first.unchanged_s
        if final:
            # The job has already been explained; what comes after its end is aftermath.
            return not self.has_reported
        if is_final(diagnosis):
            return True
        if first.group is not None and first.seq is not None:
            # The same wait at the same sequence number: its members have not moved, whatever other
            # threads of these ranks do.
            self.is_pending = cause not in previous
            return not self.is_pending
        waiting = first.victims or first.culprits or tuple(progress)
        frozen = all(progress.get(rank) == before.get(rank) for rank in waiting)
        self.is_pending = cause not in previous
        return frozen and not self.is_pending

    def _is_longer(self, first: Finding, now_s: float) -> bool:
        """Whether it lasts twice as long as what the job has outlived by the same ranks' doing."""
        lasted_s = self._outlived.get(first.culprits)
        return lasted_s is not None and now_s - self._since[1] >= 2 * lasted_s

    def moves_again(self, lasted_s: float) -> None:
        """The job goes on: what was reported explains nothing that happens from now on."""
        self.has_reported = self.is_tentative = self.reported_elsewhere = self._settled = False
        for culprits in self._culprits_said:
            self._outlived[culprits] = max(lasted_s, self._outlived.get(culprits, 0.0))

    def suppress(self) -> None:
        """Another monitor has reported on the whole job; this node's view adds nothing."""
        self.has_reported = self.reported_elsewhere = True
        self.is_tentative = False

    def mark_reported(self, diagnosis: Diagnosis) -> None:
        """Remember that the diagnosis was printed."""
        self.has_reported = True
        self.is_tentative = diagnosis.verdict is Verdict.INCONCLUSIVE
        self._settled |= is_final(diagnosis) and bool(diagnosis.culprits)
        for finding in diagnosis.findings:
            self._said.add(cause_of(finding))
            if finding.culprits:
                self._culprits_said.add(finding.culprits)
