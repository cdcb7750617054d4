"""What the numbers in a log mean: most call themselves ranks, and some are none.

A name, a tag or a print is taken at its word until the log contradicts it. Then the log is read
once more, with the other meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hangscope.trace.job_log.lines.line import LogLine, Machine

TORCHRUN = re.compile(r"torch[./]distributed[./](?:elastic[./]|run(?:\.py|:|$))")
"""In the file, or in the words, of what torchrun's agent prints."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the numbers around and in a log are taken for."""

    own_rank: int | None = None
    """The rank whose the whole file is, as its name states."""
    own_local: int | None = None
    """The local rank whose it is."""
    prints_are_local: bool = False
    """What the job itself prints as its rank is the local one."""
    tags_are_nodes: bool = False
    """What an MPI launcher puts in front of each line is the number of a node: there it has started
    a launcher that starts the ranks."""


class Numbers:
    """Gives each line the rank, local rank or node that its numbers mean."""

    def __init__(self, meaning: Meaning) -> None:
        self._meaning = meaning
        self._machines: dict[int, Machine] = {}
        """By the number that the job prints for itself the machine that did."""

    def contradicted_by(self, line: LogLine) -> Meaning | None:
        """Another meaning, where a line shows that the present one is wrong."""
        meaning = self._meaning
        if not meaning.tags_are_nodes and line.task is not None and _starts_ranks(line):
            return replace(meaning, tags_are_nodes=True)
        if not meaning.prints_are_local and self._is_another_machines(line):
            return replace(meaning, prints_are_local=True)
        return None

    def _is_another_machines(self, line: LogLine) -> bool:
        """Whether two machines print one number: torch's own labels are no prints."""
        if not line.printed or line.rank is None or line.machine.is_unknown:
            return False
        return not self._machines.setdefault(line.rank, line.machine).may_be(line.machine)

    def attributed(self, line: LogLine) -> LogLine:
        """The line with its numbers as what they are."""
        if self._meaning.prints_are_local and line.printed and line.rank is not None:
            line = line._replace(rank=None, local_rank=line.rank, printed=False)
        if line.task is None:
            return line
        if self._meaning.tags_are_nodes:
            return line._replace(node=line.task)
        return line if line.rank is not None else line._replace(rank=line.task)


def _starts_ranks(line: LogLine) -> bool:
    """Whether a line shows that behind its tag are other ranks than that of its number."""
    if line.rank is not None and line.rank != line.task:
        return True
    return TORCHRUN.search(line.file) is not None or TORCHRUN.search(line.text) is not None
