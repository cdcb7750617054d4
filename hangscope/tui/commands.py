"""Names of the panes, and the entries of the command palette."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.markup import escape

from hangscope.report.escape import plain
from hangscope.report.wait_bundles import group_labels

if TYPE_CHECKING:
    from hangscope.tui.app import HangScopeApp

PANES = {
    "timeline": "Timeline",
    "ranks": "Ranks",
    "sequence": "Sequence",
    "details": "Details",
    "waits": "Waits",
    "stacks": "Stacks",
    "late": "Late",
}
_GROUPS = 256


def commands(app: HangScopeApp) -> Iterator[SystemCommand]:
    """Everything that has a key, and the groups of the job by name."""
    for i, (name, title) in enumerate(PANES.items()):
        yield SystemCommand(title, f"Show this pane ({i + 1})", partial(app.action_pane, name))
    yield SystemCommand("Divergence", "Where the job parted (d)", app.action_divergence)
    yield SystemCommand("Source", "The code where they part (s)", app.action_source)
    yield SystemCommand("Keys", "All keys (?)", app.action_help)
    yield SystemCommand("Light or dark", "Change the ground", app.toggle_theme)
    yield SystemCommand("Quit", "Leave (q)", app.exit)
    if app.snapshot is None:
        return
    labels = group_labels(app.snapshot.diagnosis, app.snapshot.trace)
    for index, group in enumerate(app.snapshot.trace.groups[:_GROUPS]):
        label = plain(labels.get(group.name, group.label), 60)
        yield SystemCommand(
            f"Group {escape(label)}", "By sequence number", partial(app.show_group, index)
        )
