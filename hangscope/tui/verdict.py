"""The verdict, on top of every pane: what happened and what to do, in three lines."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text
from textual.widgets import Static

from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.report.escape import plain
from hangscope.report.words import confidence_note, headline, scene
from hangscope.tui.snapshot import Snapshot

_BADGE = {
    Verdict.HEALTHY: "bold #14171c on #3ecf9b",
    Verdict.QUIESCENT: "bold #14171c on #f0b429",
    Verdict.INCONCLUSIVE: "bold #14171c on #f0b429",
}


class VerdictBar(Static):
    """Badge and scene, the summary, and the way out; updated with every look."""

    DEFAULT_CSS = """
    VerdictBar { height: 3; padding: 0 1; background: $background; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("looking …", id=id, markup=False)

    def show(self, snapshot: Snapshot, note: str = "") -> None:
        """Write the verdict of `snapshot`; `note` stands at the end of the first line."""
        self.update(lines(snapshot.diagnosis, note))


def lines(diagnosis: Diagnosis, note: str = "") -> Group:
    """The three lines, each cut at the edge of the screen."""
    first = diagnosis.findings[0] if diagnosis.findings else None
    top = Text(no_wrap=True, overflow="ellipsis")
    top.append(
        f" {headline(diagnosis.verdict)} ", _BADGE.get(diagnosis.verdict, "bold #14171c on #ff8a4c")
    )
    top.append(f"  {scene(diagnosis)}", "dim")
    if doubt := confidence_note(first.confidence if first else diagnosis.confidence):
        top.append(f" · {doubt.split(':')[0]}", "#f0b429")
    if len(diagnosis.findings) > 1:
        top.append(f" · {len(diagnosis.findings)} findings", "dim")
    if note:
        top.append(f" · {plain(note, 200)}", "dim")
    summary = Text(plain(diagnosis.summary), "bold", no_wrap=True, overflow="ellipsis")
    way = Text(no_wrap=True, overflow="ellipsis")
    if first is not None and first.fix:
        way.append("Do  ", "bold").append(plain(first.fix))
    elif first is not None and first.why:
        way.append("Why ", "bold").append(plain(first.why))
    elif diagnosis.notes:
        way.append(plain(diagnosis.notes[0]), "dim")
    return Group(top, summary, way)
