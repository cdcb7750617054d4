"""Whose the lines of a file are, as its name tells or the headings of ``tail`` inside it."""

from __future__ import annotations

from pathlib import Path

from hangscope.trace.files import file_names
from hangscope.trace.job_log.lines.line import LogLine

_BEGINS, _ENDS = "==> ", " <=="
"""How ``head`` and ``tail`` tell whose lines follow."""


class FileWriter:
    """The rank, or the local rank, that the name of the file at hand states.

    The headings of ``tail`` inside a log are the names of the files that follow.
    """

    def __init__(self, rank: int | None, local_rank: int | None) -> None:
        self._rank, self._local_rank = rank, local_rank
        self._of_all_lines = rank
        """The rank that the name of the whole log states."""

    def is_heading(self, line: LogLine) -> bool:
        """Whether the line tells whose lines follow."""
        if not (line.text.startswith(_BEGINS) and line.text.endswith(_ENDS)):
            return False
        self._rank, self._local_rank = named_by(line.text[len(_BEGINS) : -len(_ENDS)])
        self._of_all_lines = None
        return True

    def is_another(self, line: LogLine) -> bool:
        """Whether another rank than the name of the whole log states has written the line."""
        whole = self._of_all_lines
        return whole is not None and line.rank not in (None, whole) and not line.printed

    def attributed(self, line: LogLine) -> LogLine:
        """The line as the writer's of the file, where its own prefixes tell no rank."""
        if line.rank is not None or (self._rank is None and self._local_rank is None):
            return line
        local_rank = line.local_rank if self._local_rank is None else self._local_rank
        return line._replace(rank=self._rank, local_rank=local_rank)


def named_by(name: str) -> tuple[int | None, int | None]:
    """The rank and the local rank that the name of a log states."""
    path = Path(name)
    return file_names.rank_of_log(path), file_names.local_rank_of_log(path)
