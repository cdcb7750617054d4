"""Pages that open over the panes: source code and help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from hangscope.report.escape import plain
from hangscope.report.formatting import shown_path
from hangscope.report.source_lines import Sources
from hangscope.trace.model import Frame
from hangscope.tui.theme import CULPRIT, NOTICE

KEYS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "From the verdict to the line",
        (
            ("d", "jump to where the job parted, at the culprit"),
            ("Enter", "details: both sides' stacks"),
            ("s", "the source around the frames where they part"),
        ),
    ),
    (
        "Panes",
        (
            ("1 … 7", "timeline, ranks, by sequence, details, waits, stacks, late"),
            ("Tab", "next pane"),
            ("Esc", "back"),
        ),
    ),
    (
        "Moving",
        (
            ("↑ ↓  j k", "rank by rank"),
            ("← →  h l", "operation by operation (timeline), number by number (sequence)"),
            ("g G", "first, last"),
            ("/  n N", "search a rank, a host, all_reduce, #118; next, previous"),
        ),
    ),
    (
        "Timeline",
        (
            ("+ −", "zoom; with the mouse: Ctrl and the wheel"),
            ("[ ]  H L", "pan"),
            ("f", "follow the newest moment"),
            ("0", "the whole run"),
            ("c", "next culprit"),
        ),
    ),
    ("Ranks", (("o  O", "sort by the next column, turn the order round"), ("/", "filter"))),
    ("By sequence", (("<  >", "previous, next group"),)),
    ("Everywhere", (("Ctrl+P", "command palette"), ("?", "these keys"), ("q", "quit"))),
)


class Over(ModalScreen[None]):
    """A page over the panes, closed by Esc, q or Enter."""

    DEFAULT_CSS = """
    Over { align: center middle; background: $background 70%; }
    Over > VerticalScroll { width: 94%; max-width: 120; height: auto; max-height: 92%;
        border: round $secondary; background: $background; padding: 0 1;
        scrollbar-size-vertical: 1; scrollbar-color: $panel; scrollbar-background: $background; }
    Over Static { height: auto; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,s,question_mark", "dismiss", "Close", show=False),
        Binding("j,down", "roll(1)", show=False),
        Binding("k,up", "roll(-1)", show=False),
    ]

    def __init__(self, content: RenderableType) -> None:
        super().__init__()
        self.content = content

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self.content, markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_roll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)


def help_page() -> RenderableType:
    """All keys, by subject."""
    parts: list[RenderableType] = []
    for title, keys in KEYS:
        parts.append(Text(title, "bold"))
        table = Table.grid(padding=(0, 2, 0, 2))
        table.add_column(width=10, no_wrap=True, style=NOTICE)
        table.add_column(overflow="fold")
        for key, meaning in keys:
            table.add_row(key, meaning)
        parts += [table, Text()]
    return Group(*parts[:-1])


def source_page(
    frames: Sequence[tuple[str, Frame]], sources: Sources, around: int = 5
) -> RenderableType:
    """The code around each of `frames`, which are (whose, frame), in that order."""
    if not frames:
        return Text("No stack was recorded, so there is no line to show.")
    return Group(*_excerpts(frames, sources, around))


def _excerpts(frames: Sequence[tuple[str, Frame]], sources: Sources, around: int) -> Iterator[Text]:
    for i, (who, frame) in enumerate(frames):
        if i:
            yield Text()
        head = Text(who, f"bold {CULPRIT}" if not i else "bold")
        head.append(f"  {shown_path(frame.filename)}:{frame.line}", "not bold")
        head.append(f"  in {plain(frame.name, 80)}", "not bold dim")
        yield head
        code = sources.excerpt(frame, around, around)
        if not code:
            changed = sources.changed(frame)
            why = "was written after the job had begun" if changed else "is not on this machine"
            yield Text(f"     the file {why}", "dim")
        for line in code:
            here = line.number == frame.line
            text = Text(no_wrap=True, overflow="ellipsis")
            text.append("▸ " if here else "  ", f"bold {NOTICE}")
            text.append(f"{line.number:>4}  ", "dim")
            text.append(line.text, f"bold {NOTICE}" if here else "" if not i else "dim")
            yield text
