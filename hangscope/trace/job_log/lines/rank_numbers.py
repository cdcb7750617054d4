"""Decides what the numbers in a log mean: most are called ranks, but some are none.

A name, tag or print is taken at its word until the log contradicts it. Then the log is read again
with the other meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hangscope.trace.job_log.lines.line import LogLine, Machine

TORCHRUN = re.compile(r"torch[./]distributed[./](?:elastic[./]|run(?:\.py|:|$))")
"""In the file name or the text of messages of torchrun's agent."""


@dataclass(frozen=True, slots=True)
class NumberMeaning:
    """How the numbers in and around a log are interpreted."""

    own_rank: int | None = None
    """The rank of the whole file, according to its name."""
    own_local: int | None = None
    """The local rank of the whole file."""
    prints_are_local: bool = False
    """What the job itself prints as its rank is the local rank."""
    tags_are_nodes: bool = False
    """An MPI launcher's tag is a node's number: it has started a launcher on each node."""


class RankNumbers:
    """Gives each line the rank, local rank or node that its numbers mean."""

    def __init__(self, meaning: NumberMeaning) -> None:
        self._meaning = meaning
        self._machines: dict[int, Machine] = {}
        """The machine that printed each number for itself."""

    def contradicted_by(self, line: LogLine) -> NumberMeaning | None:
        """Another meaning, if a line shows that the present one is wrong."""
        meaning = self._meaning
        if not meaning.tags_are_nodes and line.task is not None and _starts_ranks(line):
            return replace(meaning, tags_are_nodes=True)
        if not meaning.prints_are_local and self._is_another_machines(line):
            return replace(meaning, prints_are_local=True)
        return None

    def _is_another_machines(self, line: LogLine) -> bool:
        """Whether two machines print the same number; torch's own labels do not count."""
        if not line.printed or line.rank is None or line.machine.is_unknown:
            return False
        return not self._machines.setdefault(line.rank, line.machine).may_be(line.machine)

    def attributed(self, line: LogLine) -> LogLine:
        """The line with its numbers assigned to what they mean."""
        if self._meaning.prints_are_local and line.printed and line.rank is not None:
            line = line._replace(rank=None, local_rank=line.rank, printed=False)
        if line.task is None:
            return line
        if self._meaning.tags_are_nodes:
            return line._replace(node=line.task)
        return line if line.rank is not None else line._replace(rank=line.task)


def _starts_ranks(line: LogLine) -> bool:
    """Whether a line shows that its tag's number is not the rank of the writer."""
    if line.rank is not None and line.rank != line.task:
        return True
    return TORCHRUN.search(line.file) is not None or TORCHRUN.search(line.text) is not None
