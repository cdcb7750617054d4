"""The verdict at the top of the screen: what happened and what to do, in three or four lines."""

from __future__ import annotations

import textwrap

from rich.console import Group
from rich.text import Text
from textual.widgets import Static

from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.report.escape import plain
from hangscope.report.formatting import confidence_note, headline, scene
from hangscope.tui.snapshot import Snapshot
from hangscope.tui.theme import CULPRIT, GOOD, GROUND, NOTICE

_BADGE = {
    Verdict.HEALTHY: f"bold {GROUND} on {GOOD}",
    Verdict.QUIESCENT: f"bold {GROUND} on {NOTICE}",
    Verdict.INCONCLUSIVE: f"bold {GROUND} on {NOTICE}",
}


class VerdictBar(Static):
    """Badge, key facts, summary and advice; updated with every look."""

    DEFAULT_CSS = """
    VerdictBar { height: auto; min-height: 3; padding: 0 1; background: $background; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("looking …", id=id, markup=False)
        self._shown: tuple[Diagnosis, str] | None = None
        self.more = 0
        """Number of lines beyond three."""

    def show(self, snapshot: Snapshot, note: str = "") -> None:
        """Show the verdict of `snapshot`; `note` is put at the end of the first line."""
        if not snapshot.is_judged:
            self.update("looking for the cause …")
            return
        self._shown = snapshot.diagnosis, note
        self._write()

    def on_resize(self) -> None:
        self._write()

    def _write(self) -> None:
        if self._shown is not None:
            width = self.app.size.width - 2
            self.more = int(len(plain(self._shown[0].headline)) > width)
            self.update(lines(*self._shown, width=width))


def lines(diagnosis: Diagnosis, note: str = "", width: int = 78) -> Group:
    """The lines of the verdict, cut at the screen's edge; the summary may take two."""
    first = diagnosis.findings[0] if diagnosis.findings else None
    top = Text(no_wrap=True, overflow="ellipsis")
    top.append(
        f" {headline(diagnosis.verdict)} ",
        _BADGE.get(diagnosis.verdict, f"bold {GROUND} on {CULPRIT}"),
    )
    top.append(f"  {scene(diagnosis)}", "dim")
    confidence = first.confidence if first else diagnosis.confidence
    if doubt := confidence_note(diagnosis.verdict, confidence):
        top.append(f" · {doubt.split(':')[0]}", NOTICE)
    if len(diagnosis.findings) > 1:
        top.append(f" · {len(diagnosis.findings)} findings", "dim")
    if note:
        top.append(f" · {plain(note, 200)}", "dim")
    words = textwrap.wrap(plain(diagnosis.headline), max(width, 20)) or [""]
    sentence = [Text(words[0], "bold", no_wrap=True)]
    if len(words) > 1:
        sentence.append(Text(" ".join(words[1:]), "bold", no_wrap=True, overflow="ellipsis"))
    way = Text(no_wrap=True, overflow="ellipsis")
    if first is not None and first.fix:
        way.append("Do  ", "bold").append(plain(first.fix))
    elif first is not None and first.why:
        way.append("Why ", "bold").append(plain(first.why))
    elif diagnosis.notes:
        way.append(plain(diagnosis.notes[0]), "dim")
    return Group(top, *sentence, way)
