"""One group by sequence number, to see at a glance which member lacks which collective."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.strip import Strip

from hangscope.report.escape import plain
from hangscope.report.palette import kind_of
from hangscope.report.spans import End
from hangscope.report.timeline import group_index
from hangscope.trace.model import Flag, flagged
from hangscope.trace.rank_text import named
from hangscope.tui import paint
from hangscope.tui.lines import LineList
from hangscope.tui.snapshot import Snapshot
from hangscope.tui.theme import COLUMN, CULPRIT

_CELL = 2
_LACKS = Style(color=CULPRIT, bold=True)


class SequenceView(LineList):
    """Rows are the members of a group, columns are sequence numbers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "shift(-1)", "Earlier", show=False),
        Binding("right,l", "shift(1)", "Later", show=False),
        Binding("shift+left,H,[", "shift(-20)", "Page left", show=False),
        Binding("shift+right,L,]", "shift(20)", "Page right", show=False),
        Binding("comma,less_than_sign", "group(-1)", "Previous group", show=False),
        Binding("full_stop,greater_than_sign", "group(1)", "Next group", show=False),
    ]

    header_lines = 2

    def __init__(self, *, letters: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.letters = letters
        self.group = 0
        self.column_seq = 0
        """The sequence number under the cursor."""
        self.members: tuple[int, ...] = ()
        self._matrix: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._first = 0
        self._frontier: dict[int, int] = {}
        self._finished: dict[int, int] = {}

    def count(self) -> int:
        return len(self.members)

    @property
    def rank(self) -> int | None:
        """The member under the cursor."""
        return self.members[self.cursor] if self.cursor < len(self.members) else None

    def show(self, snapshot: Snapshot) -> None:
        first = self.snapshot is None or not self.snapshot.is_judged
        self.snapshot = snapshot
        if first:
            self.jump()
        self.rearrange()

    def jump(self) -> None:
        """Go to the group, sequence number and member of the first finding."""
        assert self.snapshot is not None
        finding = self.snapshot.finding
        if finding is None:
            self.column_seq = self._highest()
            self.rearrange()
            return
        group = group_index(self.snapshot.trace, finding)
        if group is not None:
            self.group = group
        counted = finding.seq is not None and kind_of(finding.op or "") != "p2p"
        self.column_seq = finding.seq if counted and finding.seq else self._highest()
        self.rearrange()
        about = [r for r in finding.culprits if r in self.members]
        if about:
            self.move_to(self.members.index(about[0]))

    def _highest(self) -> int:
        assert self.snapshot is not None
        records = self.snapshot.trace.records
        seqs = records["collective_seq"][records["group"] == self.group]
        return int(seqs.max()) if len(seqs) else 1

    def columns(self) -> int:
        """Number of sequence numbers that fit on the screen."""
        return max((self.scrollable_content_region.width - self.label_width()) // _CELL, 1)

    def label_width(self) -> int:
        """Columns for rank numbers and marks on the left."""
        return len(str(max(self.members, default=0))) + 4

    def rearrange(self) -> None:
        """Look up the visible part of the group's history."""
        if self.snapshot is None or not self.snapshot.trace.groups:
            self.members = ()
            self.relayout()
            return
        trace = self.snapshot.trace
        self.group = min(max(self.group, 0), len(trace.groups) - 1)
        in_group = trace.records["group"] == self.group
        listed = trace.groups[self.group].ranks
        self.members = listed or tuple(np.unique(trace.records["rank"][in_group]).tolist())
        width = self.columns()
        self.column_seq = max(self.column_seq, 1)
        if not self.size.width:  # not visible yet
            self._first = 0
            self.relayout()
            return
        if self._first < 1 or not self._first <= self.column_seq < self._first + width - 1:
            self._first = max(1, self.column_seq - int(width * 0.7))
        seq = trace.records["collective_seq"]
        flags = trace.records["flags"]
        here = in_group & (seq >= self._first) & (seq < self._first + width)
        here &= ~flagged(flags, Flag.P2P | Flag.COALESCED_MEMBER)
        rows = np.flatnonzero(here)
        self._matrix = np.full((len(self.members), width), -1, np.int64)
        place = np.full(max(self.members, default=0) + 2, -1, np.int64)
        place[list(self.members)] = np.arange(len(self.members))
        ranks = np.minimum(trace.records["rank"][rows], len(place) - 1)
        known = place[ranks] >= 0
        self._matrix[place[ranks[known]], seq[rows[known]] - self._first] = rows[known]
        self._frontier = self._frontiers(in_group)
        self.relayout()

    def _frontiers(self, in_group: npt.NDArray[np.bool_]) -> dict[int, int]:
        """The last number each member is known to have issued."""
        assert self.snapshot is not None
        trace = self.snapshot.trace
        records = trace.records[in_group]
        out: dict[int, int] = {}
        if len(records):
            ranks, inverse = np.unique(records["rank"], return_inverse=True)
            top = np.zeros(len(ranks), np.int64)
            np.maximum.at(top, inverse, records["collective_seq"])
            out = dict(zip(ranks.tolist(), top.tolist(), strict=True))
        self._finished = {}
        for member in trace.members[trace.members["group"] == self.group]:
            rank = int(member["rank"])
            self._finished[rank] = int(member["completed"])
            out[rank] = max(out.get(rank, 0), int(member["enqueued"]))
        return out

    def record(self) -> int | None:
        """The record under the cursor."""
        column = self.column_seq - self._first
        if self.cursor < len(self._matrix) and 0 <= column < self._matrix.shape[1]:
            found = int(self._matrix[self.cursor, column])
            return found if found >= 0 else None
        return None

    def header(self, width: int) -> Text:
        """The group's name; the numbers are on the second line."""
        assert self.snapshot is not None
        groups = self.snapshot.trace.groups
        if not groups:
            return Text("no groups recorded")
        group = groups[self.group]
        text = Text(f"group {plain(group.label, 60)}", "bold not dim")
        text.append(f"  {named(self.members, 40)}  {plain(group.backend, 20)}")
        text.append(f"   {self.group + 1} of {len(groups)}, < > for others")
        return text

    def numbers(self) -> Text:
        """The sequence numbers above their columns."""
        line = [" "] * (self.columns() * _CELL)
        every = 10 if self._first + self.columns() < 10**5 else 20
        at = (self.column_seq - self._first) * _CELL
        text = f"#{self.column_seq}"
        begin = min(max(at - 1, 0), max(len(line) - len(text), 0))
        for i in range(self.columns()):
            number = f"{self._first + i}"
            end = i * _CELL + len(number)
            clear = end < begin or i * _CELL > begin + len(text)
            if (self._first + i) % every == 0 and clear and end <= len(line):
                line[i * _CELL : end] = list(number)
        line[begin : begin + len(text)] = list(text)
        word = "rank".rjust(self.label_width() - 2) + "  "
        out = Text(word[: self.label_width()] + "".join(line))
        out.stylize(
            "bold not dim", self.label_width() + begin, self.label_width() + begin + len(text)
        )
        return out

    def render_line(self, y: int) -> Strip:
        """Draw the second header line, which has its own content; other lines as usual."""
        width = self.scrollable_content_region.width
        if y == 1 and self.snapshot is not None and width > 0:
            return self._strip(self.numbers(), width, self.rich_style + Style(dim=True))
        return super().render_line(y)

    def line(self, row: int, width: int, selected: bool) -> list[Segment]:
        assert self.snapshot is not None
        rank = self.members[row]
        guilty = self.snapshot.role(rank) == "culprit"
        style = paint.CULPRIT_STYLE if guilty else Style()
        number = str(rank).rjust(self.label_width() - 4)
        out = [Segment(f"{'▸' if guilty else ' '} {number}  ", style)]
        frontier = self._frontier.get(rank, -1)
        top = max(self._frontier.values(), default=0)
        for i in range(self._matrix.shape[1]):
            seq = self._first + i
            text, style = self._cell(int(self._matrix[row, i]), seq, frontier, top)
            if text == "·" and seq <= self._finished.get(rank, -1):
                text = "▪"  # completed according to the group's counter
            if seq == self.column_seq:
                style += Style(reverse=selected, bgcolor=None if selected else COLUMN)
            out.append(Segment(text, style))
            out.append(Segment(" "))
        return out

    def _cell(self, record: int, seq: int, frontier: int, top: int) -> tuple[str, Style]:
        """How one collective of one member is drawn."""
        assert self.snapshot is not None
        if record >= 0:
            if self.snapshot.timing.end[record] == End.OPEN:
                return paint.WAIT, paint.OPEN_STYLE
            kind = kind_of(self.snapshot.op(record))
            return (paint.glyph(kind, True) if self.letters else "■"), paint.kind_style(kind)
        if seq <= frontier:
            return "·", Style(dim=True)  # issued, but its record has been overwritten
        if seq <= top:
            return "✗", _LACKS
        return " ", Style()

    def action_shift(self, by: int) -> None:
        self.column_seq = max(1, min(self.column_seq + by, self._highest()))
        self.rearrange()
        self.post_message(self.Moved(self, self.cursor))

    def action_group(self, by: int) -> None:
        if self.snapshot is not None and self.snapshot.trace.groups:
            self.group = (self.group + by) % len(self.snapshot.trace.groups)
            self.column_seq = self._highest()
            self.rearrange()

    def on_resize(self) -> None:
        self.rearrange()
        self.reveal()


def sequence_legend() -> Text:
    """The legend of the marks."""
    return Text.assemble(
        ("■", paint.kind_style("reduce")),
        " done  ",
        (paint.WAIT, paint.OPEN_STYLE),
        " waiting  ",
        ("✗", _LACKS),
        " never issued  ",
        ("▪", "dim"),
        " done, no record  ",
        ("·", "dim"),
        " no record",
    )
