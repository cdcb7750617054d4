"""Details of the selection: the record, and both sides' stacks with their source lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from hangscope.diagnosis.duration_text import duration
from hangscope.diagnosis.model import Finding, Side
from hangscope.report.escape import plain
from hangscope.report.formatting import (
    operation,
    short_path,
    side_words,
    tensors,
)
from hangscope.report.source_lines import Sources
from hangscope.report.timeline import group_index
from hangscope.report.wait_bundles import side_groups
from hangscope.trace.model import Flag, Frame, Stack
from hangscope.trace.rank_text import named
from hangscope.tui.snapshot import Snapshot
from hangscope.tui.theme import CULPRIT, WAITING

_CULPRIT = f"bold {CULPRIT}"


class Details(VerticalScroll, can_focus=True):
    """Shows what is known about one rank and one of its operations."""

    DEFAULT_CSS = """
    Details { padding: 0 2; background: $background; scrollbar-size-vertical: 1;
        scrollbar-color: $panel; scrollbar-background: $background; }
    Details > Static { width: 100%; height: auto; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", show=False),
        Binding("j", "scroll_down", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.body = Static(markup=False)
        self.shown: tuple[int | None, int | None] = (None, None)

    def compose(self) -> Iterator[Static]:
        yield self.body

    def show(self, snapshot: Snapshot, rank: int | None, record: int | None) -> None:
        """Show `rank` and `record` (an index into the records)."""
        if (rank, record) != self.shown:
            self.scroll_home(animate=False)
        self.shown = (rank, record)
        self.body.update(Group(*describe(snapshot, rank, record)))


def describe(
    snapshot: Snapshot, rank: int | None, record: int | None
) -> Iterator[Text | Table | Padding]:
    """The lines of the pane."""
    finding, sources = snapshot.finding, Sources.of(snapshot.diagnosis)
    if rank is not None:
        yield _rank_line(snapshot, rank)
    if record is not None:
        yield _record_table(snapshot, record)
    elif rank is not None and rank not in snapshot.bounds:
        yield Text("No operation of this rank was recorded.", "dim")
    if finding is not None and finding.sides and _concerns(snapshot, finding, rank, record):
        yield Text()
        yield Text(plain(finding.headline), "bold")
        groups = side_groups(snapshot.diagnosis, finding)
        for side in sorted(finding.sides, key=lambda s: not set(s.ranks) & set(finding.culprits)):
            yield from _side(side, finding, groups.get(side, ""), sources)
        if finding.fix:
            yield Text()
            yield Text.assemble(("Do  ", "bold"), plain(finding.fix))
        return
    stack = _stack_of_record(snapshot, record)
    if stack:
        yield Text("\nIssued at", "bold")
        yield from stack_lines(stack, None, sources)
    if rank is not None and (now := snapshot.stack_of(rank)):
        yield Text("\nThe main thread now", "bold")
        yield from stack_lines(now, None, sources)


def _concerns(snapshot: Snapshot, finding: Finding, rank: int | None, record: int | None) -> bool:
    """Whether the selection is the point of divergence."""
    if rank is None:
        return True
    if record is None or rank in finding.culprits:
        return record is None or record >= snapshot.rows(rank)[1] - 2
    if finding.group is None or finding.seq is None:
        return snapshot.is_open(record)
    group = group_index(snapshot.trace, finding)
    row = snapshot.trace.records[record]
    return bool(row["group"] == group) and snapshot.seq(record) == finding.seq


def _rank_line(snapshot: Snapshot, rank: int) -> Text:
    report, facts = snapshot.reports.get(rank), snapshot.trace.ranks.get(rank)
    guilty = snapshot.role(rank) == "culprit"
    text = Text(f"{'▸ ' if guilty else ''}Rank {rank}", _CULPRIT if guilty else "bold")
    words = []
    if report is not None:
        words += [report.role, report.state]
    if facts is not None:
        words += [facts.host or "", f"pid {facts.pid}" if facts.pid is not None else ""]
    if report is not None and report.phase:
        words.append(f"in {report.phase}")
    if report is not None and report.exit:
        words.append(report.exit)
    text.append("  " + " · ".join(plain(w, 100) for w in words if w), "not bold")
    return text


def _record_table(snapshot: Snapshot, record: int) -> Table:
    row = snapshot.trace.records[record]
    start, end = int(snapshot.timing.start_ns[record]), int(snapshot.timing.end_ns[record])
    index = int(row["signature"])
    signature = snapshot.trace.signatures[index] if index >= 0 else None
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    state = "waiting" if snapshot.is_open(record) else "took"
    lasted = duration((end - start) / 1e9)
    head = Text(plain(snapshot.label(record)), "bold")
    head.append(f"  in group {plain(snapshot.group_label(record), 60)}", "not bold")
    head.append(f"  {state} {lasted}", f"not bold {WAITING}" if state == "waiting" else "not bold")
    table.add_row("last" if _is_last(snapshot, record) else "op", head)
    if signature is not None:
        given = tensors(signature.input_sizes, signature.input_dtypes)
        got = tensors(signature.output_sizes, signature.output_dtypes)
        given = given if signature.input_sizes or not signature.output_sizes else ""
        shape = f"{given} → {got}" if given and got and got != given else given or got
        extras = [plain(signature.reduce_op or "", 20).lower()]
        root = "tag" if row["flags"] & int(Flag.P2P) else "root"  # sends and recvs have a tag
        extras += [f"{root} {row['root']}" if row["root"] >= (root == "tag") else ""]
        extras += [f"peer {row['peer']}" if row["peer"] >= 0 else ""]
        extras += ["async" if row["flags"] & int(Flag.ASYNC) else ""]
        extras += [plain(signature.raw, 60) if signature.raw != signature.op else ""]
        words = "  ".join(w for w in (shape, *extras) if w)
        if words:
            table.add_row("with", Text(words))
    if snapshot.divergence_ns is not None and start:
        away = (start - snapshot.divergence_ns) / 1e9
        when = f"{duration(abs(away))} {'after' if away >= 0 else 'before'} they parted"
        table.add_row("at", Text(when if abs(away) > 1e-9 else "the moment they parted"))
    return table


def _is_last(snapshot: Snapshot, record: int) -> bool:
    rank = int(snapshot.trace.records[record]["rank"])
    return record == snapshot.rows(rank)[1] - 1


def _stack_of_record(snapshot: Snapshot, record: int | None) -> Stack:
    if record is None:
        return ()
    index = int(snapshot.trace.records[record]["stack"])
    return snapshot.trace.stacks[index] if index >= 0 else ()


def _side(side: Side, finding: Finding, group: str, sources: Sources) -> Iterator[Text]:
    guilty = finding.accuses(side)
    yield Text()
    head = Text(
        f"{'▸ ' if guilty else '  '}{named(side.ranks, 40)}", _CULPRIT if guilty else "bold"
    )
    words = side_words(side, finding, group)
    waited = f" {duration(side.waiting_s)}" if side.waiting_s is not None else ""
    head.append(f"  waiting{waited} in {words.did}" if side.op else f"  {words.did}", "not bold")
    head.append(f"  {words.given}" if words.given else "", "not bold cyan")
    if side.last_op:
        head.append(f"  last {operation(side.last_op, side.last_seq)}", "not bold dim")
    yield head
    yield from stack_lines(side.stack, side.differs_at, sources)


def stack_lines(stack: Stack, differs_at: int | None, sources: Sources) -> Iterator[Text]:
    """A stack, outermost frame first, with each frame's source line if it can be read."""
    places = [f"{short_path(f.filename)}:{f.line}" for f in stack]
    width = min(max((len(p) for p in places), default=0), 34)
    for i in range(len(stack) - 1, -1, -1):
        frame, hit = stack[i], i == differs_at
        text = Text("    ")
        text.append("▸ " if hit else "  ", f"bold {WAITING}")
        text.append(places[i].ljust(width), "bold" if hit else "")
        text.append(f"  in {plain(frame.name, 80)}", "" if hit else "dim")
        yield text
        if code := sources.line(frame):
            yield Text(f"          {code}", "cyan" if hit or i == 0 else "dim")


def frames_of_interest(snapshot: Snapshot, rank: int | None) -> Sequence[tuple[str, Frame]]:
    """(whose, frame) of the most interesting frames: the culprits' first, then the others'."""
    finding = snapshot.finding
    out: dict[tuple[str, Frame], None] = {}
    if finding is not None:
        guilty = set(finding.culprits)
        for side in sorted(finding.sides, key=lambda s: not set(s.ranks) & guilty):
            if side.stack:
                who = named(side.ranks, 30)
                out[who, side.stack[0]] = None
                if side.differs_at is not None and 0 <= side.differs_at < len(side.stack):
                    out[who, side.stack[side.differs_at]] = None
    on_a_side = finding is not None and any(rank in s.ranks and s.stack for s in finding.sides)
    if rank is not None and not on_a_side:
        for frame in snapshot.stack_of(rank):
            out[f"rank {rank}", frame] = None
    return list(out)
