"""The application: panes that show one snapshot, refreshed while the job is alive."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Footer, Input, Static

from hangscope.report.escape import plain
from hangscope.report.source_lines import Sources
from hangscope.tui.commands import PANES, commands
from hangscope.tui.details import Details, frames_of_interest
from hangscope.tui.few_colours import FewColours
from hangscope.tui.late import LateTable
from hangscope.tui.layout import CSS, place_details
from hangscope.tui.lines import LineList
from hangscope.tui.pane_bar import PaneBar
from hangscope.tui.ranks import RankTable
from hangscope.tui.screens import Over, help_page, source_page
from hangscope.tui.search import find
from hangscope.tui.sequence import SequenceView
from hangscope.tui.snapshot import Snapshot
from hangscope.tui.source import Source, snapshots
from hangscope.tui.status import status
from hangscope.tui.theme import CULPRIT, DARK, LIGHT, NOTICE
from hangscope.tui.timeline import Timeline
from hangscope.tui.trees import StackTree, TreeList, WaitTree
from hangscope.tui.verdict import VerdictBar

_REST = 2.0
"""Pause after a look, as a multiple of the time it took."""


class HangScopeApp(App[None]):
    """Timelines of one job in the terminal."""

    TITLE = "HangScope"
    ENABLE_COMMAND_PALETTE = True
    CSS = CSS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "divergence", "Divergence"),
        Binding("s", "source", "Source"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("f", "follow", "Follow"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False),
        Binding("n", "again(1)", show=False),
        Binding("N", "again(-1)", show=False),
        Binding("tab", "next_pane(1)", show=False, priority=True),
        Binding("shift+tab", "next_pane(-1)", show=False, priority=True),
        Binding("escape", "leave", show=False),
        *[Binding(str(i + 1), f"pane('{name}')", show=False) for i, name in enumerate(PANES)],
    ]

    def __init__(
        self, source: Source, *, refresh_s: float = 1.0, few_colours: bool = False
    ) -> None:
        super().__init__()
        self.few_colours = FewColours() if few_colours else None
        self.source = source
        self.refresh_s = refresh_s
        self.snapshot: Snapshot | None = None
        self.rank: int | None = None
        self.record: int | None = None
        self.looking_for = ""
        self.trouble = ""
        self._looking = False
        self._rest_until_s = 0.0
        self._came_from = "timeline"
        letters = "NO_COLOR" in os.environ
        self.timeline = Timeline(letters=letters, id="timeline")
        self.ranks = RankTable(id="ranks")
        self.sequence = SequenceView(letters=letters, id="sequence")
        self.details = Details(id="details")
        self.waits = WaitTree(id="waits")
        self.stacks = StackTree(id="stacks")
        self.late = LateTable(id="late")
        self.side = Details(id="side")

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's own filters, then the one for terminals with sixteen colours."""
        filters = super().get_line_filters()
        return [*filters, self.few_colours] if self.few_colours else filters

    # Layout

    def compose(self) -> ComposeResult:
        yield VerdictBar(id="verdict")
        yield PaneBar(id="bar")
        with Container(id="panes"):
            with ContentSwitcher(initial="timeline", id="switch"):
                yield self.timeline
                yield self.ranks
                yield self.sequence
                yield self.details
                yield self.waits
                yield self.stacks
                yield self.late
            yield self.side
        yield Static(id="status", markup=False)
        yield Input(id="search", placeholder="rank 12, node3, all_reduce, #118", compact=True)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = DARK.name
        self.side.can_focus = False
        self.query_one(PaneBar).show(self.pane)
        self.timeline.focus()
        self._look()
        if self.source.live:
            # Key presses wait for the reading thread's time slice to end, so make slices short.
            sys.setswitchinterval(0.001)
            self.set_interval(self.refresh_s, self._look)

    def on_resize(self, event: events.Resize) -> None:
        self._arrange(event.size.width, event.size.height)
        self._details()

    def _arrange(self, width: int | None = None, height: int | None = None) -> None:
        """Put the details beside the pane if there is enough width, else below it."""
        panes = self.query_one("#panes", Container)
        place = place_details(
            width or self.size.width,
            height or self.size.height,
            rows=len(self.snapshot.ranks) if self.snapshot is not None else None,
            words=self.query_one(VerdictBar).more,
            pane=self.pane,
        )
        panes.set_class(place.beside, "-wide")
        self.side.display = place.shown
        self.side.styles.height = "1fr" if place.beside else max(place.spare, 1)

    @property
    def ranks_known(self) -> bool:
        """Whether there is any rank to draw."""
        return self.snapshot is not None and bool(self.snapshot.ranks)

    @property
    def switch(self) -> ContentSwitcher:
        """The container of the panes."""
        return self.query_one("#switch", ContentSwitcher)

    @property
    def pane(self) -> str:
        """The name of the visible pane."""
        return self.switch.current or "timeline"

    # Looking

    def _look(self) -> None:
        if not self._looking and time.monotonic() >= self._rest_until_s:
            self._looking = True
            self._look_now()

    @work(thread=True, exit_on_error=False)
    def _look_now(self) -> None:
        """Read and diagnose outside the UI thread."""
        began_s = time.monotonic()
        try:
            for snapshot in snapshots(self.source, first=self.snapshot is None):
                now_s = time.monotonic()
                self._rest_until_s = now_s + _REST * (now_s - began_s)
                self.call_from_thread(self.show, snapshot)
        except Exception as error:  # keep the last picture, whatever a damaged file causes
            self.call_from_thread(self._missed, error)

    def _missed(self, error: Exception) -> None:
        self._looking = False
        self.trouble = plain(f"could not look: {type(error).__name__}: {error}", 300)
        self._status()

    def show(self, snapshot: Snapshot) -> None:
        """Show `snapshot` in all panes."""
        self._looking, self.trouble = False, ""
        first = self.snapshot is None or not self.snapshot.is_judged
        self.snapshot = snapshot
        self.query_one(VerdictBar).show(snapshot, self.source.title)
        self.timeline.show(snapshot)
        self.record = self.timeline.record
        current = self._widget()
        if isinstance(current, LineList) and current is not self.timeline:
            current.show(snapshot)
        if first:
            finding = snapshot.finding
            about = (finding.culprits or finding.victims) if finding else snapshot.ranks
            self.rank = about[0] if about else None
            if self.rank is not None:
                self.record = snapshot.record_at_divergence(self.rank)
            self._arrange()
        self._details()
        self._status()

    def _widget(self) -> Widget:
        return self.query_one(f"#{self.pane}")

    def _details(self) -> None:
        if self.snapshot is None:
            return
        for widget in (self.side, self.details):
            if widget.display and (widget is self.side or self.pane == "details"):
                widget.show(self.snapshot, self.rank, self.record)

    def _status(self) -> None:
        if self.trouble:
            text = Text(self.trouble, CULPRIT)
        elif self.snapshot is None:
            text = Text()
        else:
            text = status(self._widget(), live=self.source.live)
        self.query_one("#status", Static).update(text)

    # Panes

    def action_pane(self, name: str) -> None:
        """Show a pane."""
        if self.pane != "details":
            self._came_from = self.pane
        self.switch.current = name
        self._arrange()
        self.query_one(PaneBar).show(self.pane)
        widget = self._widget()
        if self.snapshot is not None and isinstance(widget, LineList):
            widget.show(self.snapshot)
            if isinstance(widget, RankTable) and self.rank is not None:
                widget.select(self.rank)
        widget.focus()
        self._details()
        self._status()

    def action_next_pane(self, by: int) -> None:
        """Show the next or previous pane."""
        if isinstance(self.screen, Over):
            return
        names = list(PANES)
        self.action_pane(names[(names.index(self.pane) + by) % len(names)])

    def action_leave(self) -> None:
        """Close the search, or go back to the pane from which the details were opened."""
        search = self.query_one("#search", Input)
        if search.has_class("-open"):
            self._close_search()
            if self.pane == "ranks":
                self._filter("")
        elif self.pane == "ranks" and self.ranks.filter:
            self._filter("")
        elif self.pane != "timeline":
            self.action_pane(self._came_from if self.pane == "details" else "timeline")

    @on(PaneBar.Picked)
    def _picked(self, message: PaneBar.Picked) -> None:
        self.action_pane(message.name)

    # What is selected

    @on(Timeline.Selected)
    def _selected(self, message: Timeline.Selected) -> None:
        self.rank, self.record = message.rank, message.record
        self._details()
        if self.pane == "timeline":
            self._status()

    @on(LineList.Moved)
    def _moved(self, message: LineList.Moved) -> None:
        sender = message.sender
        if isinstance(sender, Timeline) or self.snapshot is None:
            return
        rank = getattr(sender, "rank", None)
        if rank is None:
            return
        self.rank = rank
        record = sender.record() if isinstance(sender, SequenceView) else None
        self.record = record if record is not None else self.snapshot.record_at_divergence(rank)
        self._details()

    @on(LineList.Chosen)
    def _chosen(self) -> None:
        self.action_details()

    def action_details(self) -> None:
        """Show the details of the selection, with both sides' stacks."""
        widget = self._widget()
        if isinstance(widget, LineList) and not isinstance(widget, Timeline):
            self._moved(LineList.Moved(widget, widget.cursor))
        if self.pane != "details":
            self.action_pane("details")

    def action_divergence(self) -> None:
        """Show the timeline at the culprit and the moment of divergence."""
        if self.snapshot is None:
            return
        if self.pane == "sequence":
            self.sequence.jump()
            return
        if self.pane != "timeline":
            self.action_pane("timeline")
        self.call_after_refresh(self.timeline.jump)

    def action_source(self) -> None:
        """Show the code where the sides diverge, or of the frame under the cursor."""
        if self.snapshot is None:
            return
        frames = list(frames_of_interest(self.snapshot, self.rank))
        widget = self._widget()
        if isinstance(widget, TreeList) and widget.frame is not None:
            who = f"rank {widget.rank}"
            frames = [(who, widget.frame), *(f for f in frames if f[1] != widget.frame)]
        self.push_screen(Over(source_page(frames, Sources.of(self.snapshot.diagnosis))))

    def action_follow(self) -> None:
        """Keep the newest moment visible."""
        if self.pane != "timeline":
            self.action_pane("timeline")
        self.timeline.action_follow()
        self._status()

    def action_help(self) -> None:
        """Show all keys."""
        self.push_screen(Over(help_page()))

    # Searching

    def action_search(self) -> None:
        """Open the search prompt."""
        search = self.query_one("#search", Input)
        search.value = self.ranks.filter if self.pane == "ranks" else ""
        search.add_class("-open")
        search.focus()

    def _close_search(self) -> None:
        self.query_one("#search", Input).remove_class("-open")
        self._widget().focus()

    @on(Input.Changed, "#search")
    def _typed(self, event: Input.Changed) -> None:
        if self.pane == "ranks" and event.input.has_class("-open"):
            self._filter(event.value)

    def _filter(self, words: str) -> None:
        self.ranks.filter = words
        self.ranks.rearrange()
        self._status()

    @on(Input.Submitted, "#search")
    def _entered(self, event: Input.Submitted) -> None:
        self._close_search()
        if self.pane != "ranks":
            self.looking_for = event.value
            self.action_again(1)

    def action_again(self, step: int) -> None:
        """Go to the next match of the last search."""
        if self.snapshot is None or not self.looking_for:
            return
        hit = find(self.snapshot, self.looking_for, self.rank, self.record, step)
        if hit is None:
            words = f"nothing matches {plain(self.looking_for, 60)}"
            self.query_one("#status", Static).update(Text(words, NOTICE))
            return
        self._status()
        self.rank, self.record = hit
        if self.pane not in ("timeline", "details"):
            self.action_pane("timeline")
        self.timeline.select(*hit)
        self._details()

    # The command palette

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Everything that has a key, and the groups by name."""
        yield from commands(self)

    def toggle_theme(self) -> None:
        """Switch between light and dark."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def show_group(self, index: int) -> None:
        """Show a group by sequence number."""
        self.action_pane("sequence")
        self.sequence.group = index
        self.sequence.rearrange()
