"""Attributes the lines of a file by its name, or by the ``tail`` headings inside it."""

from __future__ import annotations

from pathlib import Path

from hangscope.trace.files import file_names
from hangscope.trace.job_log.lines.line import LogLine

_BEGINS, _ENDS = "==> ", " <=="
"""How ``head`` and ``tail`` mark whose lines follow."""


class FileWriter:
    """The rank, or local rank, stated by the name of the current file.

    Headings of ``tail`` inside a log are the names of the files that follow.
    """

    def __init__(self, rank: int | None, local_rank: int | None) -> None:
        self._rank, self._local_rank = rank, local_rank
        self._of_all_lines = rank
        """The rank stated by the name of the whole log."""

    def is_heading(self, line: LogLine) -> bool:
        """Whether the line is a heading that states whose lines follow."""
        if not (line.text.startswith(_BEGINS) and line.text.endswith(_ENDS)):
            return False
        self._rank, self._local_rank = ranks_in_name(line.text[len(_BEGINS) : -len(_ENDS)])
        self._of_all_lines = None
        return True

    def is_another(self, line: LogLine) -> bool:
        """Whether the line was written by another rank than the whole log's name states."""
        whole = self._of_all_lines
        return whole is not None and line.rank not in (None, whole) and not line.printed

    def attributed(self, line: LogLine) -> LogLine:
        """The line attributed to the file's writer, unless its own prefixes state a rank."""
        if line.rank is not None or (self._rank is None and self._local_rank is None):
            return line
        local_rank = line.local_rank if self._local_rank is None else self._local_rank
        return line._replace(rank=self._rank, local_rank=local_rank)


def ranks_in_name(name: str) -> tuple[int | None, int | None]:
    """The rank and the local rank stated by the name of a log."""
    path = Path(name)
    return file_names.rank_of_log(path), file_names.local_rank_of_log(path)
