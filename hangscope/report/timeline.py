"""Timeline of the moment the ranks diverged: a few rows, a few steps, and the wait after them.

A hang lasts minutes while a step lasts milliseconds, so a linear axis could show either the steps
or the wait. The axis here has one break: it is linear until shortly after the divergence, and the
whole wait is compressed into the strip behind the break.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hangscope.diagnosis.duration_text import duration
from hangscope.diagnosis.model import Diagnosis, Finding, RankReport, Side
from hangscope.report.palette import KINDS, kind_of
from hangscope.report.spans import End, Int64, Spans, spans
from hangscope.trace.model import Flag, State, Trace, flagged

WIDTH, LEFT, ROW, BAR, THIN = 960.0, 92.0, 24.0, 15.0, 5.0
_TOP = 20.0
"""Height of the axis above the first row."""
_BREAK = 0.70
_STEPS = 14
_ROWS = 24
_BARS_PER_ROW = 160


@dataclass(frozen=True, slots=True)
class Bar:
    """One operation (or one absence), in picture coordinates."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    """A key of `palette.KINDS`, ``"open"`` for an unfinished operation, ``"absent"``."""
    text: str
    label: str = ""
    label_x: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One rank."""

    rank: int
    y: float
    role: str
    state: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the time axis."""

    x: float
    text: str
    end: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """The whole drawing."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    divergence_x: float
    break_x: float | None
    height: float
    kinds: tuple[tuple[str, str], ...]
    """(kind, word) of every kind of operation drawn, for the legend."""
    left_out: int
    """Number of ranks of the job that are not drawn."""


def timeline(diagnosis: Diagnosis, trace: Trace) -> Timeline | None:
    """The timeline around the first finding or, without findings, around the end of the run."""
    if not len(trace.records):
        return None
    finding = diagnosis.findings[0] if diagnosis.findings else None
    group = group_index(trace, finding)
    ranks = _chosen(diagnosis, trace, finding)
    # Do not compute times for millions of records of ranks that are not drawn.
    trace = replace(trace, records=trace.records[np.isin(trace.records["rank"], ranks)])
    timing = spans(trace)
    parted = divergence_ns(trace, timing, finding, ranks)
    axis = _Axis(*_window(trace, timing, group, ranks, parted), timing.last_ns)
    reports = {r.rank: r for r in diagnosis.ranks}
    subject = _Subject(trace, timing, axis, finding, group)
    rows = tuple(_row(subject, i, rank, reports.get(rank)) for i, rank in enumerate(ranks))
    drawn = {bar.kind for row in rows for bar in row.bars}
    world = max(diagnosis.world_size or 0, len(trace.ranks), len(ranks))
    return Timeline(
        rows=rows,
        ticks=axis.ticks(parted),
        divergence_x=axis.x(parted),
        break_x=axis.break_x,
        height=len(ranks) * ROW + 44,
        kinds=tuple((kind, word) for kind, (_, word) in KINDS.items() if kind in drawn),
        left_out=world - len(ranks),
    )


class _Axis:
    """Maps times to x: linear up to the knee, everything later compressed behind a break."""

    def __init__(self, left: int, knee: int, last: int) -> None:
        self.left, self.last = left, max(last, left + 1)
        self.broken = self.last - knee > (knee - left) // 2
        self.knee = knee if self.broken else self.last
        self.span = WIDTH - LEFT - 8
        self.break_x = LEFT + self.span * (_BREAK + 0.01) if self.broken else None

    def x(self, t: int) -> float:
        t = min(max(t, self.left), self.last)
        if not self.broken:
            return LEFT + self.span * (t - self.left) / (self.last - self.left)
        if t <= self.knee:
            return LEFT + self.span * _BREAK * (t - self.left) / max(1, self.knee - self.left)
        tail = (t - self.knee) / max(1, self.last - self.knee)
        return LEFT + self.span * (_BREAK + 0.02 + (1 - _BREAK - 0.02) * tail)

    def label_x(self, x: float) -> float:
        """Start of the label of a bar at ``x``: always behind the break."""
        return max(x + 5, (self.break_x or 0) + 14)

    def ticks(self, parted: int) -> tuple[Tick, ...]:
        ticks = [Tick(self.x(parted), "0")]
        step = _round_step((parted - self.left) / 3e9)
        for i in (1, 2, 3):
            at = parted - int(i * step * 1e9)
            if at >= self.left and self.x(parted) - self.x(at) > 40:
                ticks.append(Tick(self.x(at), f"−{_age(i * step, step)}"))
        ticks.append(Tick(self.x(self.last), f"+{duration((self.last - parted) / 1e9)}", end=True))
        return tuple(ticks)


def _age(seconds: float, step: float) -> str:
    """A tick's label, in the unit that suits the distance between ticks."""
    return f"{seconds * 1e3:g} ms" if 0.0005 < step < 0.5 else duration(seconds)


def _round_step(seconds: float) -> float:
    """The largest 1, 2 or 5 × 10ⁿ that is not above `seconds`."""
    if seconds <= 0:
        return 1.0
    scale = 10.0 ** np.floor(np.log10(seconds))
    return float(max(m * scale for m in (1, 2, 5) if m * scale <= seconds * 1.0001))


def group_index(trace: Trace, finding: Finding | None) -> int | None:
    """Index in `Trace.groups` of the group that `finding` is about; None if there is none."""
    if finding is None or finding.group is None:
        return None
    candidates = [
        i
        for i, g in enumerate(trace.groups)
        if g.name == finding.group.name and (not g.ranks or g.ranks == finding.group.ranks)
    ]
    return candidates[-1] if candidates else None


def _chosen(diagnosis: Diagnosis, trace: Trace, finding: Finding | None) -> list[int]:
    """The ranks to draw: all of a small job, else the culprits and a few of each side."""
    everyone = sorted(set(trace.ranks) | {r.rank for r in diagnosis.ranks})
    if len(everyone) <= _ROWS:
        return everyone
    order: dict[int, None] = {}
    if finding is not None:
        order.update(dict.fromkeys(finding.culprits[:8]))
        for side in finding.sides:
            order.update(dict.fromkeys(side.ranks[:4]))
        for culprit in finding.culprits[:4]:
            near = [r for r in everyone if abs(r - culprit) <= 2]
            order.update(dict.fromkeys(near))
    order.update(dict.fromkeys(everyone))
    return sorted(list(order)[: _ROWS if finding is None else 16])


def divergence_rows(trace: Trace, finding: Finding, side: Side) -> Int64:
    """Indexes of the records of `side` at the point of divergence; may be empty.

    A side's own operation and number take precedence over the finding's: point-to-point operations
    are counted separately from collectives, and the sides of a cycle are in different groups.
    """
    seq = finding.seq_of(side)
    op = side.op or finding.op
    if seq is None or not side.ranks:
        return np.zeros(0, np.int64)
    records = trace.records
    p2p = kind_of(op or "") == "p2p"
    hit = records["p2p_seq" if p2p else "collective_seq"] == seq
    hit &= flagged(records["flags"], Flag.P2P) == p2p
    hit &= np.isin(records["rank"], side.ranks)
    named = [i for i, s in enumerate(trace.signatures) if s.op == op]
    if named and (alike := hit & np.isin(records["signature"], named)).any():
        hit = alike
    pending = hit & (records["completed_ns"] <= 0) & (records["state"] != State.COMPLETED)
    if pending.any():  # operations of other groups with the same number completed long ago
        hit = pending
    group = group_index(trace, finding)
    if group is not None and (inside := hit & (records["group"] == group)).any():
        hit = inside
    return np.flatnonzero(hit)


def divergence_ns(
    trace: Trace, timing: Spans, finding: Finding | None, ranks: Sequence[int]
) -> int:
    """When the first rank issued the operation that never completed, ns on the reference clock."""
    if finding is None:
        return timing.last_ns
    starts = [
        timing.start_ns[rows]
        for side in finding.sides
        if side.op is not None and len(rows := divergence_rows(trace, finding, side))
    ]
    begun = [int(s[s > 0].min()) for s in starts if (s > 0).any()]
    if begun:
        return min(begun)
    if finding.began_ns:
        return finding.began_ns
    hit = np.isin(trace.records["rank"], ranks) & (timing.start_ns > 0)
    still = hit & (timing.end == End.OPEN)
    return int(timing.start_ns[still].min()) if still.any() else timing.last_ns


def _window(
    trace: Trace, timing: Spans, group: int | None, ranks: Sequence[int], parted: int
) -> tuple[int, int]:
    """(left edge, knee): the last few operations before the divergence and a little after it."""
    records = trace.records
    before = (timing.start_ns > 0) & (timing.start_ns < parted)
    if group is not None and (before & (records["group"] == group)).any():
        before &= records["group"] == group
    left = parted
    for rank in ranks:
        starts = np.sort(timing.start_ns[before & (records["rank"] == rank)])
        if len(starts):
            left = min(left, max(int(starts[-min(_STEPS, len(starts))]), left - 10**12))
            break
    if left >= parted:
        left = parted - 10**9
    return left - (parted - left) // 50, parted + (parted - left) // 8


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is being drawn, and on which axis."""

    trace: Trace
    timing: Spans
    axis: _Axis
    finding: Finding | None
    group: int | None
    """Index of the group that the finding is about; other groups' operations are thin."""


def _row(subject: _Subject, index: int, rank: int, report: RankReport | None) -> Row:
    y = _TOP + index * ROW
    timing, finding = subject.timing, subject.finding
    shown = (timing.end_ns >= subject.axis.left) & (timing.start_ns > 0)
    visible = np.flatnonzero((subject.trace.records["rank"] == rank) & shown)[-_BARS_PER_ROW:]
    bars = [_bar(subject, rank, i, y) for i in visible.tolist()]
    absent = _absence(subject, rank, report, visible, y)
    if absent is not None:
        bars.append(absent)
    about = f"#{finding.seq}" if finding is not None and finding.seq is not None else None
    bars = _labelled(bars, about)
    bars.sort(key=lambda bar: bar.kind != "open")  # completed ones are drawn on top
    role, state = (report.role, report.state) if report else ("unknown", "unknown")
    return Row(rank, y, role, state, tuple(bars))


def _bar(subject: _Subject, rank: int, i: int, y: float) -> Bar:
    """The operation in row ``i`` of the records."""
    trace, timing, axis = subject.trace, subject.timing, subject.axis
    row = trace.records[i]
    start, end = int(timing.start_ns[i]), int(timing.end_ns[i])
    op = trace.signatures[row["signature"]].op if row["signature"] >= 0 else "?"
    seq = int(row["p2p_seq"] if row["flags"] & int(Flag.P2P) else row["collective_seq"])
    label = trace.groups[row["group"]].label if row["group"] >= 0 else ""
    is_open = timing.end[i] == End.OPEN
    main = subject.group is None or row["group"] == subject.group or is_open
    x = axis.x(start)
    text = f"rank {rank}: {op} #{seq} in {label}, {duration((end - start) / 1e9)}"
    return Bar(
        x=x,
        y=y + (ROW - BAR) / 2 if main else y + ROW - THIN - 2,
        width=max(axis.x(end) - x, 1.2),
        height=BAR if main else THIN,
        kind="open" if is_open else kind_of(op),
        text=text + (" and still waiting" if is_open else ""),
        label=f"{op} #{seq}" if is_open else "",
        label_x=axis.label_x(x),
    )


def _labelled(bars: list[Bar], about: str | None) -> list[Bar]:
    """`bars` with at most one label per row: on the finding's operation, else on the oldest.

    A label that does not fit after the start of its bar is placed before it.
    """
    named = [bar for bar in bars if bar.label]
    if not named:
        return bars
    chosen = next((bar for bar in named if about and bar.label.endswith(about)), named[0])
    out = []
    for bar in bars:
        if bar is not chosen:
            out.append(replace(bar, label=""))
            continue
        length = len(bar.label) * 7.0
        x = bar.label_x
        if x + length > WIDTH - 8:
            x = max(bar.x - length - 6, LEFT)
        out.append(replace(bar, label_x=x))
    return out


def _absence(
    subject: _Subject, rank: int, report: RankReport | None, visible: Int64, y: float
) -> Bar | None:
    """A bar for the gap of a rank that issued nothing while others waited for it."""
    finding, timing, axis = subject.finding, subject.timing, subject.axis
    if finding is None:
        return None
    side = next((s for s in finding.sides if rank in s.ranks and s.op is None), None)
    if side is None or (timing.end[visible] == End.OPEN).any():
        return None
    start = int(timing.end_ns[visible].max()) if len(visible) else axis.left
    what = side.activity or (report.exit or report.phase or report.state if report else "") or ""
    x = axis.x(start) + 2
    return Bar(
        x=x,
        y=y + (ROW - BAR) / 2,
        width=max(axis.x(axis.last) - x, 2),
        height=BAR,
        kind="absent",
        text=f"rank {rank}: {what or 'nothing recorded'}",
        label=what[:34],
        label_x=axis.label_x(x),
    )
