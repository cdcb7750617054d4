"""The report for a terminal or a job's log.

One screen, read from top to bottom: what happened, which rank was where, the stacks from the frame
where they diverge, why, what to do, and what is not known. It must stay readable at 80 columns,
without colour, in a terminal without Unicode, and with 8,192 ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hangscope.diagnosis.duration_text import duration
from hangscope.diagnosis.model import Diagnosis, Finding, RankReport, Side, Verdict
from hangscope.report.escape import plain
from hangscope.report.formatting import (
    confidence_note,
    headline,
    operation,
    place,
    scene,
    short_path,
    side_status,
    side_words,
    whereabouts,
)
from hangscope.report.source_lines import Sources
from hangscope.report.text_stacks import side_stacks
from hangscope.report.wait_bundles import bundles, group_labels, side_groups
from hangscope.trace.rank_text import compress, named

_ASCII = str.maketrans(
    {"–": "-", "·": "-", "…": "~", "▸": ">", "→": "->", "←": "<-", "×": "x", "µ": "u", "—": "-"}
    | {"≈": "~"}
)
_SIDES = 8
_OTHERS = 3
_LINES = 6
_LEAST_ROOM = 24
"""Minimum columns for what a side does; with fewer, it goes on the line below the ranks."""

_BADGE = {
    Verdict.HEALTHY: "bold black on green",
    Verdict.QUIESCENT: "bold black on yellow",
    Verdict.INCONCLUSIVE: "bold black on yellow",
}


def render(
    diagnosis: Diagnosis,
    *,
    all_findings: bool = False,
    rank: int | None = None,
    group: str | None = None,
) -> RenderableType:
    """The report on `diagnosis`, to be printed by a `rich.console.Console`.

    `all_findings` shows every finding in full, `rank` adds what that rank was doing, and `group` (a
    name or a description) keeps only the findings about that group.
    """
    return TextReport(diagnosis, all_findings, rank, group)


class TextReport:
    """A Rich renderable that falls back to ASCII where the console's encoding needs it."""

    def __init__(
        self, diagnosis: Diagnosis, all_findings: bool, rank: int | None, group: str | None
    ) -> None:
        self.diagnosis = diagnosis
        self.all_findings = all_findings
        self.rank = rank
        self.group = group

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self._parts(options.max_width):
            block = Padding(part, (0, 1)) if part else Text()
            for line in console.render_lines(block, options, pad=False):
                yield from _trimmed(line, options.ascii_only)
                yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(40, options.max_width), options.max_width)

    def _parts(self, width: int) -> Iterator[RenderableType | None]:
        """The report's blocks from top to bottom; None is an empty line."""
        diagnosis = self.diagnosis
        sources = Sources.of(diagnosis)
        findings = [f for f in diagnosis.findings if self.group is None or _is_in(f, self.group)]
        shown = findings if self.all_findings else findings[:1]
        yield _badge(diagnosis)
        yield None
        if not shown or shown[0] is not diagnosis.findings[0]:
            yield Text(plain(diagnosis.headline), "bold")
            if self.group is not None and not shown:
                yield None
                yield Text(f"Nothing was found in group {plain(self.group, 80)}.")
        for i, finding in enumerate(shown):
            if i:
                yield None
                yield Text(f"Also ({i + 1} of {len(shown)})", "dim")
                yield None
            groups = side_groups(diagnosis, finding)
            yield from _finding(finding, groups, sources, self.all_findings, width)
        yield from _waits(diagnosis, self.all_findings)
        if self.rank is not None:
            yield from _one_rank(diagnosis, self.rank)
        if self.all_findings:
            yield from _rank_table(diagnosis)
        notes = (*diagnosis.notes, *_changed(shown, sources))
        yield from _bullets("Lack", _lacks(diagnosis), self.all_findings)
        yield from _bullets("Note", notes, self.all_findings)
        yield from _bullets("Warn", diagnosis.warnings, self.all_findings)
        if len(findings) > len(shown):
            more = len(findings) - len(shown)
            # Two faults at once: after fixing only the first, the job would hang again.
            others = findings[len(shown) : len(shown) + _OTHERS]
            yield from _bullets("Also", [f.headline for f in others], True)
            yield Text(f"{more} more finding{'s' if more > 1 else ''}: --all shows them", "dim")


def _lacks(diagnosis: Diagnosis) -> list[str]:
    """Whose evidence is missing: what to fetch, by host, where a host is known."""
    return [
        f"evidence is missing of {host}: {named(ranks)}"
        for host, ranks in diagnosis.missing
        if host
    ]


def _badge(diagnosis: Diagnosis) -> Text:
    line = Text()
    line.append(
        f" {headline(diagnosis.verdict)} ", _BADGE.get(diagnosis.verdict, "bold white on red")
    )
    line.append(f"  {scene(diagnosis)}")
    return line


def _changed(findings: Sequence[Finding], sources: Sources) -> Iterator[str]:
    """Notes on files in the shown stacks that have changed since the job began."""
    frames = (f for finding in findings for side in finding.sides for f in side.stack)
    names = {short_path(frame.filename): None for frame in frames if sources.changed(frame)}
    if names:
        were = "were" if len(names) > 1 else "was"
        changed = f"{', '.join(names)} {were} written after the job had begun"
        yield f"{changed}, and may hold other lines by now: none is shown"


def _is_in(finding: Finding, group: str) -> bool:
    of = finding.group
    return of is not None and group in (of.name, of.desc, of.label)


def _finding(
    finding: Finding,
    groups: Mapping[Side, str],
    sources: Sources,
    everything: bool,
    width: int,
) -> Iterator[RenderableType | None]:
    yield Text(plain(finding.headline), "bold")
    if finding.sides:
        yield None
        yield Padding(_sides(finding, groups, everything, width), (0, 0, 0, 2))
    stacks = list(side_stacks(finding.sides, finding.culprits, sources, everything=everything))
    if stacks:
        yield None
        for line in stacks:
            line.no_wrap, line.overflow = True, "ellipsis"
            yield Padding(line, (0, 0, 0, 2))
    rows = []
    if finding.why:
        rows.append(("Why", Text(plain(finding.why))))
    if finding.fix:
        fix = Text(plain(finding.fix))
        if finding.playbook:
            fix.append(f"  [{plain(finding.playbook, 40)}]", "dim")
        rows.append(("Do", fix))
    if note := confidence_note(finding.verdict, finding.confidence, finding.unknowns):
        rows.append(("Sure", Text(note, "yellow")))
    if rows:
        yield None
        yield _labelled(rows)
    yield from _bullets("Seen", finding.evidence, everything)
    yield from _bullets("Open", finding.unknowns, everything)


def _labelled(rows: Iterable[tuple[str, Text]]) -> Table:
    """Short bold labels on the left, sentences that wrap on the right."""
    table = Table.grid(padding=(0, 2, 0, 0), expand=False)
    table.add_column(width=4, no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, text)
    return table


def _bullets(label: str, lines: Sequence[str], everything: bool) -> Iterator[RenderableType | None]:
    if not lines:
        return
    kept = list(lines if everything else lines[:_LINES])
    rows = [(label if not i else "", Text(plain(line))) for i, line in enumerate(kept)]
    if len(kept) < len(lines):
        rows.append(("", Text(f"… {len(lines) - len(kept)} more (--all)", "dim")))
    yield None
    yield _labelled(rows)


def _sides(finding: Finding, groups: Mapping[Side, str], everything: bool, width: int) -> Table:
    """One row per side: ranks, status, operation and code location."""
    sides = finding.sides if everything else finding.sides[:_SIDES]
    cells = [
        (
            _aligned(s.ranks),
            side_status(s, finding),
            _what(s, finding, groups.get(s, "")),
            _where(s),
        )
        for s in sides
    ]
    lead = sum(max((len(c[i]) for c in cells), default=0) for i in (0, 1)) + 10
    widest = [max((len(c[i]) for c in cells), default=0) for i in (2, 3)]
    one_line = lead + sum(widest) + 3 <= width
    stacked = width - lead < _LEAST_ROOM
    table = Table.grid(padding=(0, 3, 0, 0), expand=False)
    table.add_column(no_wrap=not stacked)
    if not stacked:
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
    if one_line:
        table.add_column(no_wrap=True)
    for side, (ranks, how, what, where) in zip(sides, cells, strict=True):
        guilty = finding.accuses(side)
        who = Text(ranks, "bold red" if guilty else "bold")
        if where and not one_line:
            what.append(f"\n{where}")
        if stacked:
            table.add_row(Text.assemble(who, f"  {how}"))
            table.add_row(Padding(what, (0, 0, 0, 2)))
        else:
            table.add_row(who, Text(how), what, *([Text(where)] if one_line else []))
    if len(sides) < len(finding.sides):
        table.add_row(Text(f"… {len(finding.sides) - len(sides)} more", "dim"))
    return table


def _aligned(ranks: Sequence[int]) -> str:
    """Like `named`, but with the numbers after ``rank`` and ``ranks`` aligned."""
    text = named(ranks, 26)
    return text.replace("rank ", "rank  ", 1) if text.startswith("rank ") else text


def _what(side: Side, finding: Finding, group: str) -> Text:
    words = side_words(side, finding, group)
    text = Text(words.did)
    text.append(f"  {words.given}" if words.given else "", "cyan")
    text.append(f"  last {words.last}" if words.last else "", "dim")
    return text


def _where(side: Side) -> str:
    return place(side.stack[0]) if side.stack else ""


def _waits(diagnosis: Diagnosis, everything: bool) -> Iterator[RenderableType | None]:
    """The wait-for graph, if it says more than the sides do."""
    guilty = set(diagnosis.culprits)
    joined = sorted(bundles(diagnosis.wait_for), key=lambda b: not guilty & set(b.on))
    if not everything and len({b.on for b in joined}) < 2:
        return
    labels = group_labels(diagnosis)
    rows = []
    kept = joined if everything else joined[:_LINES]
    for i, bundle in enumerate(kept):
        text = Text()
        text.append(f"{named(bundle.waiters, 26)} → {named(bundle.on, 26)}")
        group = plain(labels.get(bundle.group, bundle.group) or "default", 40)
        if bundle.op == bundle.group:  # a phase or a store key, not an operation of a group
            text.append(f"  {plain(bundle.op, 60)}", "dim")
        else:
            text.append(f"  {operation(bundle.op or None, bundle.seq)} in group {group}", "dim")
        rows.append(("" if i else "Wait", text))
    if len(kept) < len(joined):
        rows.append(("", Text(f"… {len(joined) - len(kept)} more (--all)", "dim")))
    if rows:
        yield None
        yield _labelled(rows)


def _one_rank(diagnosis: Diagnosis, rank: int) -> Iterator[RenderableType | None]:
    yield None
    report = next((r for r in diagnosis.ranks if r.rank == rank), None)
    if report is None:
        yield Text(f"No source says anything about rank {rank}.")
        return
    line = Text(f"Rank {rank}", "bold")
    about = [report.role, report.state]
    if report.host:
        about.append(f"host {report.host}")
    if report.pid is not None:
        about.append(f"pid {report.pid}")
    if report.phase:
        about.append(f"in {report.phase}")
    if report.exit:
        about.append(report.exit)
    line.append("  " + " · ".join(plain(a, 120) for a in about), "not bold")
    yield line
    waiters = [e.waiter for e in diagnosis.wait_for if e.on == rank]
    rows = [("Last", Text(_last(report, group_labels(diagnosis))))]
    if report.waiting_for or report.waiting_s is not None:
        since = f", {duration(report.waiting_s)}" if report.waiting_s is not None else ""
        on = f" for {named(report.waiting_for, 60)}" if report.waiting_for else ""
        rows.append(("Wait", Text(f"waits{on}{since}")))
    if waiters:
        rows.append(("", Text(f"{named(waiters, 60)} wait{'s' * (len(waiters) == 1)} for it")))
    yield _labelled(rows)
    sides, sources = [Side((rank,), stack=report.stack)], Sources.of(diagnosis)
    for text in side_stacks(sides, (), sources, everything=True):
        text.no_wrap, text.overflow = True, "ellipsis"
        yield Padding(text, (0, 0, 0, 2))


def _last(report: RankReport, labels: Mapping[str, str]) -> str:
    if report.last is None:
        return "no operation recorded"
    group = labels.get(report.last.group, report.last.group)
    return f"{operation(report.last.op, report.last.seq)} in group {plain(group, 60)}"


def _rank_table(diagnosis: Diagnosis) -> Iterator[RenderableType | None]:
    """A table of all ranks, with one row for all ranks that look alike."""
    order = {"culprit": 0, "victim": 1, "unknown": 2, "bystander": 3}
    alike: dict[tuple[str, str, str, str], list[int]] = {}
    for report in diagnosis.ranks:
        last = operation(report.last.op, report.last.seq) if report.last else ""
        key = (report.role, report.state, last, plain(whereabouts(report), 120))
        alike.setdefault(key, []).append(report.rank)
    if not alike:
        return
    table = Table.grid(padding=(0, 3, 0, 0))
    for widest in (26, 9, 9, 30):
        table.add_column(no_wrap=True, max_width=widest, overflow="ellipsis")
    table.add_column(overflow="ellipsis", no_wrap=True)
    table.add_row(*(Text(h, "dim") for h in ("ranks", "role", "state", "last", "at")))
    for key, ranks in sorted(alike.items(), key=lambda item: (order.get(item[0][0], 9), item[1])):
        style = "bold red" if key[0] == "culprit" else ""
        table.add_row(Text(compress(ranks, 24), style), *(Text(plain(k, 120)) for k in key))
    yield None
    yield table


def _trimmed(line: list[Segment], ascii_only: bool) -> Iterator[Segment]:
    """`line` without trailing blanks, in ASCII if the console supports nothing else."""
    while line and not line[-1].text.strip() and not (line[-1].style and line[-1].style.bgcolor):
        line.pop()
    for i, segment in enumerate(line):
        text = segment.text.translate(_ASCII) if ascii_only else segment.text
        if i == len(line) - 1 and not (segment.style and segment.style.bgcolor):
            text = text.rstrip()
        if ascii_only:
            text = text.encode("ascii", "replace").decode("ascii")
        yield Segment(text, segment.style)
