"""One self-contained HTML page about one hang, suitable for attaching to a ticket.

No network, no scripts, no external fonts. Everything that came from a file is escaped twice:
control characters are shown as codes, and Jinja escapes HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from hangscope._version import __version__
from hangscope.diagnosis.duration_text import duration
from hangscope.diagnosis.model import UNDECIDED, Diagnosis, Finding, RankReport, Side, Verdict
from hangscope.report import palette
from hangscope.report.escape import plain
from hangscope.report.formatting import (
    confidence_note,
    headline,
    operation,
    scene,
    short_path,
    side_status,
    side_words,
    whereabouts,
)
from hangscope.report.heat_map import heat_map
from hangscope.report.source_lines import SourceLine, Sources
from hangscope.report.stack_tree import Branch, merge
from hangscope.report.timeline import LEFT, ROW, WIDTH, timeline
from hangscope.report.wait_bundles import group_labels, side_groups
from hangscope.report.wait_graph import wait_graph
from hangscope.trace.model import Frame, Trace
from hangscope.trace.rank_text import compress, named

_TABLE_ROWS = 2048
_SIDES = 12
_FRAMES = 40


@dataclass(frozen=True, slots=True)
class FrameView:
    """One frame as displayed; with surrounding source lines where the sides diverge."""

    where: str
    path: str
    name: str
    marked: bool
    code: tuple[SourceLine, ...]
    line: int


@dataclass(frozen=True, slots=True)
class SideView:
    """One side of the divergence."""

    who: str
    culprit: bool
    how: str
    what: str
    given: str
    last: str
    frames: tuple[FrameView, ...]


@dataclass(frozen=True, slots=True)
class RankRow:
    """A row of the rank table; `who` is one rank or, in a very large job, all that look alike."""

    who: str
    role: str
    state: str
    host: str
    pid: str
    last: str
    waiting: str
    at: str


def to_html(diagnosis: Diagnosis, trace: Trace) -> str:
    """Render `diagnosis` as one HTML document, with pictures drawn from `trace`."""
    labels = group_labels(diagnosis, trace)
    return _template().render(
        diagnosis=diagnosis,
        headline=headline(diagnosis.verdict),
        tone=_tone(diagnosis.verdict),
        scene=scene(diagnosis),
        findings=[_finding_view(diagnosis, f) for f in diagnosis.findings],
        timeline=timeline(diagnosis, trace),
        graph=wait_graph(diagnosis, labels),
        ranks=_rank_rows(diagnosis, labels),
        ranks_total=len(diagnosis.ranks),
        branches=_branches(diagnosis),
        heat=heat_map(trace),
        colours=palette,
        left=LEFT,
        row=ROW,
        width=WIDTH,
        observed=_moment(trace.observed_ns),
        version=__version__,
    )


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_final,
    )
    environment.filters["px"] = lambda value: f"{value:.1f}".removesuffix(".0")
    return environment.get_template("page.html")


def _final(value: Any) -> Any:
    """Filter that every value printed by a template passes through."""
    return plain(value, 4000) if type(value) is str else value


def _tone(verdict: Verdict) -> str:
    if verdict is Verdict.HEALTHY:
        return "good"
    return "unsure" if verdict in UNDECIDED else "bad"


def _moment(time_ns: int) -> str:
    if not 0 < time_ns < 2**62:
        return ""
    return datetime.fromtimestamp(time_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _finding_view(diagnosis: Diagnosis, finding: Finding) -> dict[str, Any]:
    groups, sources = side_groups(diagnosis, finding), Sources.of(diagnosis)
    return {
        "summary": finding.headline,
        "why": finding.why,
        "fix": finding.fix,
        "playbook": finding.playbook,
        "note": confidence_note(finding.verdict, finding.confidence, finding.unknowns),
        "evidence": finding.evidence,
        "unknowns": finding.unknowns,
        "sides": [
            _side_view(s, finding, groups.get(s, ""), sources) for s in finding.sides[:_SIDES]
        ],
        "left_out": max(0, len(finding.sides) - _SIDES),
        "victims": named(finding.victims, 80) if finding.victims else "",
    }


def _side_view(side: Side, finding: Finding, group: str, sources: Sources) -> SideView:
    words = side_words(side, finding, group)
    return SideView(
        who=named(side.ranks, 60),
        culprit=finding.accuses(side),
        how=side_status(side, finding),
        what=words.did,
        given=words.given,
        last=f"last: {words.last}" if words.last else "",
        frames=_frame_views(side, sources),
    )


def _frame_views(side: Side, sources: Sources) -> tuple[FrameView, ...]:
    """Frames outermost first, like a traceback; source for the inner end and the divergence."""
    stack = side.stack[:_FRAMES]
    views = []
    for i, frame in enumerate(stack):
        marked = i == side.differs_at
        views.append(_frame_view(frame, marked, 3 if marked or i == 0 else -1, sources))
    return tuple(reversed(views))


def _frame_view(frame: Frame, marked: bool, around: int, sources: Sources) -> FrameView:
    code = sources.excerpt(frame, around, around) if around >= 0 else ()
    where = f"{short_path(frame.filename)}:{frame.line}"
    return FrameView(where, frame.filename, frame.name, marked, code, frame.line)


def _rank_rows(diagnosis: Diagnosis, labels: dict[str, str]) -> list[RankRow]:
    if len(diagnosis.ranks) <= _TABLE_ROWS:
        return [_rank_row([r], labels) for r in diagnosis.ranks]
    alike: dict[tuple[Any, ...], list[RankReport]] = {}
    for report in diagnosis.ranks:
        key = (report.role, report.state, report.last, report.waiting_for, report.stack)
        alike.setdefault(key, []).append(report)
    groups = sorted(alike.values(), key=lambda rs: (rs[0].role != "culprit", -len(rs), rs[0].rank))
    return [_rank_row(reports, labels) for reports in groups[:_TABLE_ROWS]]


def _rank_row(reports: Sequence[RankReport], labels: dict[str, str]) -> RankRow:
    first = reports[0]
    hosts = list(dict.fromkeys(r.host for r in reports if r.host))
    last = ""
    if first.last is not None:
        group = labels.get(first.last.group, first.last.group)
        last = f"{operation(first.last.op, first.last.seq)} · {group}"
    waiting = named(first.waiting_for, 30) if first.waiting_for else ""
    if first.waiting_s is not None:
        waiting = f"{waiting}, {duration(first.waiting_s)}".removeprefix(", ")
    return RankRow(
        who=compress([r.rank for r in reports], 40),
        role=first.role,
        state=first.state,
        host=hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts" if hosts else "",
        pid=str(first.pid) if len(reports) == 1 and first.pid is not None else "",
        last=last,
        waiting=waiting,
        at=whereabouts(first),
    )


def _branches(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """The merged stacks of all ranks, one entry per branch; empty if that adds nothing."""
    roots = merge([((r.rank,), r.stack) for r in diagnosis.ranks])
    everyone = {r.rank for r in diagnosis.ranks if r.stack}
    return [_branch_view(b, everyone) for root in roots for b in root.walk()][:200]


def _branch_view(branch: Branch, everyone: set[int]) -> dict[str, Any]:
    have = set(branch.ranks)
    lack = everyone - have
    return {
        "depth": min(branch.depth, 12),
        "have": "all ranks" if not lack else named(branch.ranks, 60),
        "count": len(have),
        "frames": [
            (f"{short_path(f.filename)}:{f.line}", f.name) for f in branch.frames[-_FRAMES:]
        ],
    }
