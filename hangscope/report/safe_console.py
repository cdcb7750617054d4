"""A console on which text cannot control the terminal, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hangscope.report.escape import visible


class SafeConsole(Console):
    """A console of which only what is styled by the program itself becomes an escape sequence."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments whose text is escaped; rich calls this for whatever is printed."""
        for segment in super().render(renderable, options):
            text = visible(segment.text)
            yield (
                segment if segment.control or text == segment.text else Segment(text, segment.style)
            )
