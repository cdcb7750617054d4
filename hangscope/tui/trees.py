"""The wait-for graph and the merged stacks, as trees of lines."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from hangscope.diagnosis.duration_text import duration
from hangscope.diagnosis.model import Verdict
from hangscope.report.escape import plain
from hangscope.report.formatting import operation, place, short_path
from hangscope.report.source_lines import Sources
from hangscope.report.stack_tree import Branch, merge
from hangscope.report.wait_bundles import Bundle, bundles, group_labels
from hangscope.report.wait_graph import condensed
from hangscope.trace.model import Frame
from hangscope.trace.rank_text import named
from hangscope.tui.lines import LineList
from hangscope.tui.snapshot import Snapshot
from hangscope.tui.theme import CULPRIT, WAITING

_CULPRIT = f"bold {CULPRIT}"
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a tree, with the rank and frame it shows."""

    text: Text
    rank: int | None = None
    frame: Frame | None = None


class TreeList(LineList):
    """A tree whose lines are created once per snapshot."""

    header_lines = 1
    title = ""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: list[Row] = []

    def count(self) -> int:
        return len(self.rows)

    def show(self, snapshot: Snapshot) -> None:
        self.rows = self.make(snapshot) or [Row(Text(f"  {self.nothing(snapshot)}", "dim"))]
        super().show(snapshot)

    def make(self, snapshot: Snapshot) -> list[Row]:
        """All lines of the tree."""
        raise NotImplementedError

    def nothing(self, snapshot: Snapshot) -> str:
        """The text for an empty tree."""
        raise NotImplementedError

    def header(self, width: int) -> Text:
        return Text(self.title)

    def line(self, row: int, width: int, selected: bool) -> Text:
        return self.rows[row].text.copy()

    @property
    def rank(self) -> int | None:
        """The first rank of the line under the cursor."""
        return self.rows[self.cursor].rank if self.cursor < len(self.rows) else None

    @property
    def frame(self) -> Frame | None:
        """The frame under the cursor."""
        return self.rows[self.cursor].frame if self.cursor < len(self.rows) else None


class WaitTree(TreeList):
    """Causes first; below each, who waits on it."""

    title = "  who waits on whom: causes at the top, those who wait below them"

    def nothing(self, snapshot: Snapshot) -> str:
        finding = snapshot.finding
        if finding is None:
            return "nobody waits on anybody"
        if finding.verdict is Verdict.STUCK_COLLECTIVE:
            return "no rank waits on another: all of them are in the operation that does not end"
        if finding.verdict.value.endswith("_mismatch"):
            return "no rank waits on another: all of them are there, with what cannot go together"
        return "no waiting of one rank on another is on record"

    def make(self, snapshot: Snapshot) -> list[Row]:
        joined = bundles(snapshot.diagnosis.wait_for)
        if not joined:
            return []
        classes, edges = condensed(joined)
        labels = group_labels(snapshot.diagnosis, snapshot.trace)
        waiters: dict[int, list[tuple[int, Bundle]]] = {}
        waits = set()
        for (a, b), bundle in edges.items():
            waiters.setdefault(b, []).append((a, bundle))
            waits.add(a)
        guilty = set(snapshot.diagnosis.culprits)
        roots = [c for c in range(len(classes)) if c not in waits]
        if not roots:
            roots = [c for c in range(len(classes)) if guilty & set(classes[c])][:1] or [0]
        rows: list[Row] = []
        drawn: set[int] = set()
        order = dict.fromkeys([*roots, *range(len(classes))])
        pending: list[tuple[int, int, Bundle | None]] = [(c, 0, None) for c in reversed(order)]
        while pending:
            c, depth, via = pending.pop()
            again = c in drawn
            if again and via is None:
                continue  # it is listed below what it waits on
            rows.append(self._row(snapshot, classes[c], guilty, depth, via, again, labels))
            if again or depth >= _DEEPEST:
                continue
            drawn.add(c)
            below = sorted(waiters.get(c, []), key=lambda w: (len(classes[w[0]]), classes[w[0]]))
            pending += [(a, depth + 1, bundle) for a, bundle in below]
        return rows

    def _row(
        self,
        snapshot: Snapshot,
        ranks: tuple[int, ...],
        guilty: set[int],
        depth: int,
        via: Bundle | None,
        again: bool,
        labels: dict[str, str],
    ) -> Row:
        mark = bool(guilty & set(ranks))
        text = Text()
        text.append("  " + "   " * max(depth - 1, 0) + ("└─ " if depth else ""), "dim")
        text.append("▸ " if mark else "", _CULPRIT)
        text.append(named(ranks, 36), _CULPRIT if mark else "bold")
        report = snapshot.reports.get(ranks[0])
        if via is not None:
            group = plain(labels.get(via.group, via.group) or "default", 40)
            text.append("  waits in " if len(ranks) == 1 else "  wait in ", "dim").append(
                operation(via.op or None, via.seq)
            )
            text.append(f" of {group}", "dim")
            if report and report.waiting_s is not None:
                text.append(f"  {duration(report.waiting_s)}", WAITING)
        if again:
            text.append("  ↻ closes the cycle", _CULPRIT)
        elif report is not None and via is None:
            text.append(f"  {report.state}")
            where = report.exit or (place(report.stack[0]) if report.stack else report.phase) or ""
            text.append(f"  {plain(where, 120)}", "dim")
        return Row(text, ranks[0], report.stack[0] if report and report.stack else None)


class StackTree(TreeList):
    """The stacks of all ranks merged, outermost frame first."""

    title = "  stacks of all ranks, merged: outermost frame first, a fork where ranks part"

    def nothing(self, snapshot: Snapshot) -> str:
        return "no stacks were recorded"

    def make(self, snapshot: Snapshot) -> list[Row]:
        stacks = [((r,), snapshot.stack_of(r)) for r in snapshot.ranks]
        everyone = {r for (r,), stack in stacks if stack}
        guilty = set(snapshot.diagnosis.culprits)
        rows: list[Row] = []
        sources = Sources.of(snapshot.diagnosis)
        for root in merge(stacks):
            for branch in root.walk():
                rows += self._branch(branch, everyone, guilty, sources)
        if without := sorted(set(snapshot.ranks) - everyone):
            rows.append(Row(Text(f"  no stack for {named(without, 60)}", "dim")))
        return rows

    def _branch(
        self, branch: Branch, everyone: set[int], guilty: set[int], sources: Sources
    ) -> list[Row]:
        indent = "  " + "   " * min(branch.depth, _DEEPEST)
        have = set(branch.ranks)
        lack = everyone - have
        mark = bool(have) and have <= guilty
        head = Text(indent)
        head.append("▸ " if mark else "", _CULPRIT)
        head.append(
            "all ranks" if not lack else named(branch.ranks, 40), _CULPRIT if mark else "bold"
        )
        if lack:
            head.append(f"   not {named(sorted(lack), 30)}", "dim")
        rows = [Row(head, branch.ranks[0], branch.frames[-1])]
        inner = not branch.children
        for i, frame in enumerate(branch.frames):
            text = Text(f"{indent}   {short_path(frame.filename)}:{frame.line}")
            text.append(f"  in {plain(frame.name, 80)}", "dim")
            if inner and i == len(branch.frames) - 1 and (code := sources.line(frame)):
                text.append(f"   {code}", "cyan")
            rows.append(Row(text, branch.ranks[0], frame))
        return rows
