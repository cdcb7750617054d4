"""One message of a job log, and what its prefixes say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_LONGEST_EXCERPT = 400
_FAR, _BEFORE = 120, 20
_ADDRESS = re.compile(r"[\d.]*|.*:.*")
DRIVER_HOST = ""
"""The host for processes without an address in Ray's prefix: the driver's."""


class Machine(NamedTuple):
    """Where a line was written, as far as its prefixes show."""

    host: str | None = None
    node: int | None = None
    """Its node rank, or the number of a scheduler's task."""
    front: str = ""
    """An unknown prefix, if no host is stated: lines with different ones may be from two
    machines."""

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known about it."""
        return self.host is None and self.node is None and not self.front

    def may_be(self, other: Machine) -> bool:
        """Whether the two may be one machine: a name cannot be compared with an address."""
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


UNKNOWN_MACHINE = Machine()
"""A machine about which nothing is known."""


def _is_short_for(one: Machine, other: Machine) -> bool:
    """Whether one name is the other without its domain."""
    names = sorted((one.host or "", other.host or ""), key=len)
    return names[1].startswith(names[0] + ".")


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


class Writer(NamedTuple):
    """Who wrote a line: a rank, else whatever is known about the process."""

    rank: int | None
    local_rank: int | None = None
    pid: int | None = None
    machine: Machine = UNKNOWN_MACHINE


NOBODY = Writer(None)
"""A writer about whom nothing is known: perhaps several."""


class LogLine(NamedTuple):
    """One message: its text without prefixes, and what the prefixes say."""

    text: str
    number: int = 0
    """Physical line number, from 1."""
    shape: str = ""
    """The text's shape (`line_shapes`), if already known."""
    rank: int | None = None
    """The global rank, from a prefix that states it."""
    task: int | None = None
    """A task number, from an MPI launcher's tag: a rank, or a node with several."""
    local_rank: int | None = None
    node: int | None = None
    host: str | None = None
    pid: int | None = None
    level: str = ""
    file: str = ""
    """C++ source file of a c10 message."""
    at_ns: int = 0
    """Local time to the second as if it were UTC, only good for ordering within a log; 0 if the
    line states none."""
    printed: bool = False
    """The rank comes from output of the job itself, which is no sign of life at the end."""
    excepthook: bool = False
    """Printed by torch's hook for uncaught exceptions (``[rank3]: Traceback ...``)."""
    front: str = ""
    """An unknown prefix in front of a message from torch or a launcher."""
    repeated: bool = False
    """Ray dropped other lines that differ only in their numbers."""
    payload: int = 0
    """Where in the text its message begins, as far as that is known."""

    @property
    def machine(self) -> Machine:
        """Where it was written."""
        return Machine(self.host, self.node, self.front if self.host is None else "")

    @property
    def writer(self) -> Writer:
        """Who wrote it: lines of one writer belong together, even if others come between them."""
        if self.rank is not None:
            return Writer(self.rank)
        return Writer(None, self.local_rank, self.pid, self.machine)

    @property
    def excerpt(self) -> str:
        """The part of the text that reports quote: around its message, if much stands before."""
        if self.payload > _FAR:
            return "… " + self.text[self.payload - _BEFORE :].strip()[:_LONGEST_EXCERPT]
        return self.text.strip()[:_LONGEST_EXCERPT]

    def rank_or(self, said: int) -> int:
        """The rank in the prefix, else the one stated in the message itself."""
        return self.rank if self.rank is not None else said

    def is_place(self, said: int) -> bool:
        """Whether the number that the writer calls its rank is a rank inside a smaller group: then
        so are the other numbers in its message.
        """
        return self.rank is not None and self.rank != said

    def saying(self, text: str) -> LogLine:
        """The line with another text."""
        return self._replace(text=text, shape="", payload=0)
