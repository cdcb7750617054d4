"""One message of a job log, and what the prefixes in front of it said."""

from __future__ import annotations

from typing import NamedTuple

_LONGEST_EXCERPT = 400


class LogLine(NamedTuple):
    """One message: its text without prefixes, and what the prefixes said."""

    text: str
    number: int = 0
    """Physical line, from 1."""
    shape: str = ""
    """That of the text (`shapes`), where it is known already."""
    rank: int | None = None
    """The global rank, from a prefix that means it."""
    local_rank: int | None = None
    node: int | None = None
    host: str | None = None
    pid: int | None = None
    level: str = ""
    file: str = ""
    """C++ source file of a c10 message."""
    at: tuple[int, int, int] | None = None
    """(month, day, second of the day); logs carry no year."""
    printed: bool = False
    """The rank stands in what the job itself printed: no sign of life at the end."""
    excepthook: bool = False
    """Printed by torch's hook for uncaught exceptions (``[rank3]: Traceback ...``)."""
    repeated: bool = False
    """Ray left out others that read alike but for their numbers."""

    @property
    def excerpt(self) -> str:
        """As much of the text as reports quote."""
        return self.text.strip()[:_LONGEST_EXCERPT]

    def rank_or(self, said: int) -> int:
        """The rank as the prefix has it, else as the message itself says."""
        return self.rank if self.rank is not None else said

    def is_place(self, said: int) -> bool:
        """Whether what the writer calls its rank is its place in a smaller group: then so are the
        other numbers that its message gives."""
        return self.rank is not None and self.rank != said

    def saying(self, text: str) -> LogLine:
        """The line with another text."""
        return self._replace(text=text, shape="")
