"""One message of a job log, and what the prefixes in front of it said."""

from __future__ import annotations

import re
from typing import NamedTuple

_LONGEST_EXCERPT = 400
_ADDRESS = re.compile(r"[\d.]*|.*:.*")
THE_DRIVERS = ""
"""The host of which Ray gives no address: that on which the driver runs."""


class Machine(NamedTuple):
    """Where a line was written, as far as the prefixes in front of it tell."""

    host: str | None = None
    node: int | None = None
    """Its number among those of the job, or that of a scheduler's task."""
    front: str = ""
    """What nobody understands in front of its lines, where no host is told: where that differs,
    these may be two machines."""

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is told of it."""
        return self.host is None and self.node is None and not self.front

    def may_be(self, other: Machine) -> bool:
        """Whether nothing shows that these are two: a name tells nothing of an address."""
        if None not in (self.node, other.node) and self.node != other.node:
            return False
        if self.front and other.front and self.front != other.front:
            return False
        if self.host is None or other.host is None:
            return True
        addresses = _ADDRESS.fullmatch(self.host), _ADDRESS.fullmatch(other.host)
        if any(addresses) and not all(addresses):
            return True
        return self.host == other.host or (not any(addresses) and _is_short_for(self, other))


SOMEWHERE = Machine()
"""A machine of which nothing is told."""


def _is_short_for(one: Machine, other: Machine) -> bool:
    """Whether one name is the other without its domain."""
    names = sorted((one.host or "", other.host or ""), key=len)
    return names[1].startswith(names[0] + ".")


class Writer(NamedTuple):
    """Who wrote a line: a rank, else whatever is known of the process."""

    rank: int | None
    local_rank: int | None = None
    pid: int | None = None
    machine: Machine = SOMEWHERE


class LogLine(NamedTuple):
    """One message: its text without prefixes, and what the prefixes said."""

    text: str
    number: int = 0
    """Physical line, from 1."""
    shape: str = ""
    """That of the text (`line_shapes`), where it is known already."""
    rank: int | None = None
    """The global rank, from a prefix that means it."""
    task: int | None = None
    """The number of a task, from the tag of an MPI launcher: a rank, or a node of several."""
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
    front: str = ""
    """What stands in front of a message of torch's or of a launcher's and nobody understands."""
    repeated: bool = False
    """Ray left out others that read alike but for their numbers."""

    @property
    def machine(self) -> Machine:
        """Where it was written."""
        return Machine(self.host, self.node, self.front if self.host is None else "")

    @property
    def writer(self) -> Writer:
        """Who wrote it: lines of one writer belong together, others may stand between them."""
        if self.rank is not None:
            return Writer(self.rank)
        return Writer(None, self.local_rank, self.pid, self.machine)

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
