"""One look at a job, indexed for drawing; built outside the UI thread and immutable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from hangscope.diagnosis.model import (
    Confidence,
    Diagnosis,
    Finding,
    RankReport,
    Side,
    Verdict,
)
from hangscope.report.spans import End, Spans, spans
from hangscope.report.timeline import divergence_ns, divergence_rows
from hangscope.trace.model import Flag, Stack, Trace, flagged

RATE_WINDOW_NS = 10 * 1_000_000_000
"""Period over which the rate of operations is computed."""
_UNJUDGED = Diagnosis(Verdict.INCONCLUSIVE, (), Confidence.AMBIGUOUS, "")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A trace and its diagnosis with an index by rank; the rows of a rank are contiguous."""

    trace: Trace
    diagnosis: Diagnosis
    timing: Spans
    ranks: tuple[int, ...]
    """All ranks of the job, even those without any source."""
    bounds: dict[int, tuple[int, int]]
    """Map from a rank to its slice of the records."""
    reports: dict[int, RankReport]
    divergence_ns: int | None
    """Time of the divergence; None if nothing was found."""

    @property
    def is_judged(self) -> bool:
        """Whether the diagnosis is there; a large job's picture is shown before it."""
        return self.diagnosis is not _UNJUDGED

    @property
    def finding(self) -> Finding | None:
        """The finding of the first cause."""
        return self.diagnosis.findings[0] if self.diagnosis.findings else None

    def rows(self, rank: int) -> tuple[int, int]:
        """The slice of `Trace.records` that belongs to `rank`; empty for an unknown one."""
        return self.bounds.get(rank, (0, 0))

    def role(self, rank: int) -> str:
        """``culprit``, ``victim``, ``bystander`` or ``unknown``."""
        report = self.reports.get(rank)
        return report.role if report else "unknown"

    def seq(self, record: int) -> int:
        """The sequence number shown for a record."""
        row = self.trace.records[record]
        return int(row["p2p_seq"] if row["flags"] & int(Flag.P2P) else row["collective_seq"])

    def op(self, record: int) -> str:
        """The canonical operation name of a record."""
        signature = int(self.trace.records[record]["signature"])
        return self.trace.signatures[signature].op if signature >= 0 else "?"

    def label(self, record: int) -> str:
        """``all_reduce #118``."""
        return f"{self.op(record)} #{self.seq(record)}"

    def group_label(self, record: int) -> str:
        """The name of a record's group."""
        group = int(self.trace.records[record]["group"])
        return self.trace.groups[group].label if group >= 0 else ""

    def is_open(self, record: int) -> bool:
        """Whether the record's operation still waits."""
        return bool(self.timing.end[record] == End.OPEN)

    def rate(self, rank: int) -> float | None:
        """Operations per second over the last seconds; None without records."""
        lo, hi = self.rows(rank)
        if lo == hi:
            return None
        since = self.timing.last_ns - RATE_WINDOW_NS
        began = max(since, int(self.timing.start_ns[lo]))
        recent = int((self.timing.start_ns[lo:hi] >= since).sum())
        return recent / max((self.timing.last_ns - began) / 1e9, 1e-3)

    def record_near(self, rank: int, ns: int) -> int | None:
        """The record of `rank` that covers `ns`, else the last begun before, else the first."""
        lo, hi = self.rows(rank)
        if lo == hi:
            return None
        start, end = self.timing.start_ns[lo:hi], self.timing.end_ns[lo:hi]
        covering = np.flatnonzero((start <= ns) & (end > ns))
        if len(covering):
            return lo + int(covering[np.argmax(start[covering])])
        before = np.flatnonzero(start <= ns)
        return lo + int(before[-1]) if len(before) else lo

    def record_like(self, rank: int, other: int) -> int | None:
        """The record of `rank` for the same collective as the record `other`; None without one."""
        row = self.trace.records[other]
        lo, hi = self.rows(rank)
        rows = self.trace.records[lo:hi]
        same = (rows["group"] == row["group"]) & (rows["collective_seq"] == row["collective_seq"])
        hits = np.flatnonzero(same & ~flagged(rows["flags"], Flag.P2P))
        return lo + int(hits[-1]) if len(hits) else None

    def record_at_divergence(self, rank: int) -> int | None:
        """The record of `rank` at the point of divergence, else what it did at that moment."""
        finding = self.finding
        if finding is not None:
            side = self.side_of(rank) or Side((rank,), finding.op, finding.seq)
            rows = divergence_rows(self.trace, finding, replace(side, ranks=(rank,)))
            if len(rows):
                return int(rows[-1])
        at = self.divergence_ns if self.divergence_ns is not None else self.timing.last_ns
        return self.record_near(rank, at)

    def side_of(self, rank: int) -> Side | None:
        """The side of the first finding that `rank` is on."""
        finding = self.finding
        if finding is None:
            return None
        return next((s for s in finding.sides if rank in s.ranks), None)

    def stack_of(self, rank: int) -> Stack:
        """The current stack of `rank`: that of its main thread, else the one in the diagnosis."""
        facts = self.trace.ranks.get(rank)
        if facts is not None and facts.main_stack:
            return facts.main_stack
        report = self.reports.get(rank)
        return report.stack if report else ()


def take(trace: Trace, diagnosis: Diagnosis | None = None) -> Snapshot:
    """Index `trace` for drawing, with no Python loop over records.

    Without a ``diagnosis`` the snapshot is not judged yet; `judged` adds one.
    """
    rank_column = np.ascontiguousarray(trace.records["rank"])
    if len(rank_column) > 1 and bool((np.diff(rank_column) < 0).any()):
        order = np.argsort(rank_column, kind="stable")
        trace = replace(trace, records=trace.records[order])
        rank_column = rank_column[order]
    present, first = np.unique(rank_column, return_index=True)
    ends = np.append(first, len(rank_column))[1:]
    bounds = {int(r): (int(lo), int(hi)) for r, lo, hi in zip(present, first, ends, strict=True)}
    ranks = set(bounds) | set(trace.ranks) | set(trace.missing_ranks)
    snapshot = Snapshot(trace, _UNJUDGED, spans(trace), _shown(ranks), bounds, {}, None)
    return snapshot if diagnosis is None else judged(snapshot, diagnosis)


def judged(snapshot: Snapshot, diagnosis: Diagnosis) -> Snapshot:
    """The snapshot with its diagnosis."""
    reports = {r.rank: r for r in diagnosis.ranks}
    ranks = _shown({*snapshot.ranks, *reports})
    finding = diagnosis.findings[0] if diagnosis.findings else None
    parted = None
    if finding is not None:
        about = [r for side in finding.sides for r in side.ranks] or list(finding.victims)
        parted = divergence_ns(snapshot.trace, snapshot.timing, finding, about or list(ranks))
    return replace(
        snapshot, diagnosis=diagnosis, ranks=ranks, reports=reports, divergence_ns=parted
    )


def _shown(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(r for r in ranks if r >= 0))
