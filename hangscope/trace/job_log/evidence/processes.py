"""Maps the processes of each machine to ranks.

Pids and local ranks repeat across machines, and containers give the same small pids to all of their
first processes. A number in a line is therefore looked up together with the machine that wrote the
line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hangscope.trace.job_log.lines.line import Machine


class Process(NamedTuple):
    """A pid, and the machine on which it is valid."""

    pid: int
    machine: Machine


class ProcessRanks:
    """What is known about the processes that write to one log."""

    def __init__(self) -> None:
        self._by_pid: dict[int, dict[Machine, int]] = {}
        self._by_local: dict[int, dict[Machine, set[int]]] = {}
        """One rank per machine, except for machines that prefixes do not distinguish."""
        self._listed: dict[Machine, Mapping[int, int]] = {}
        self._counted: dict[Machine, Mapping[int, int]] = {}
        self._wrote: dict[Process, int] = {}
        self._shared: set[Process] = set()
        """Processes that forward the lines of several ranks, as a node's launcher does."""
        self.machines: set[Machine] = set()
        self.nodes = 1
        """The number of nodes, as far as a launcher states it."""
        self.newest_node: int | None = None
        """The number of the node whose launcher printed last."""
        self.newest_local: tuple[int, ...] = ()
        """The local ranks that it listed last."""
        self.is_one_node = False
        """Whether a launcher says that there is just one."""

    def of_next_attempt(self) -> ProcessRanks:
        """What survives a restart of the job: its nodes, and the commands that started it."""
        kept = ProcessRanks()
        kept.machines, kept.nodes, kept._counted = self.machines, self.nodes, self._counted
        kept.is_one_node = self.is_one_node
        return kept

    def wrote(self, rank: int, machine: Machine, pid: int | None, local: int | None) -> None:
        """Record that a line of this rank came from this process. The first rank recorded stays."""
        if local is not None:
            self._by_local.setdefault(local, {}).setdefault(machine, set()).add(rank)
        if pid is None:
            return
        process = Process(pid, machine)
        if self._wrote.setdefault(process, rank) != rank:
            self._shared.add(process)
        self._by_pid.setdefault(pid, {}).setdefault(machine, rank)

    def is_told(self, rank: int, pid: int, machine: Machine) -> None:
        """Record a process's rank as stated by a table or communicator. The newest counts."""
        self._by_pid.setdefault(pid, {})[machine] = rank

    def forget(self, rank: int) -> None:
        """Discard statements about a rank's process, which are about another rank."""
        for pid, machines in self._by_pid.items():
            for machine in [m for m, known in machines.items() if known == rank]:
                if self._wrote.get(Process(pid, machine)) != rank:
                    del machines[machine]

    def are_told(self, machine: Machine, ranks: Mapping[int, int], *, counted: bool) -> None:
        """Record the ranks of a machine's local ranks, as listed by its launcher, or ``counted``
        from the number of a node and the processes per node."""
        said = self._counted if counted else self._listed
        if said.setdefault(machine, ranks) != ranks:  # prefixes do not tell the launchers apart
            said[machine] = {}

    def of_pid(self, pid: int | None, machine: Machine) -> int | None:
        """The rank of a process; None if it is unknown or ambiguous."""
        known = self._by_pid.get(pid) if pid is not None else None
        if pid is None or not known or Process(pid, machine) in self._shared:
            return None
        return _of(known, machine)

    def of_local(self, local: int, machine: Machine) -> int | None:
        """The rank of a local rank that was observed or stated; None if ambiguous."""
        rank = self.stated(local, machine)
        if rank is not None:
            return rank
        seen = self._by_local.get(local, {})
        ranks = seen.get(machine) or {r for m, rs in seen.items() if m.may_be(machine) for r in rs}
        return next(iter(ranks)) if len(ranks) == 1 else None

    def stated(self, local: int, machine: Machine) -> int | None:
        """The rank of a local rank according to a launcher."""
        listed, counted = (
            _of({m: ranks[local] for m, ranks in said.items() if local in ranks}, machine)
            for said in (self._listed, self._counted)
        )
        return counted if listed is None else listed

    def is_counted(self, rank: int) -> bool:
        """Whether the rank's local rank was only computed, and not listed by any launcher."""
        listed = any(rank in ranks.values() for ranks in self._listed.values())
        return not listed and any(rank in ranks.values() for ranks in self._counted.values())

    def first_ranks(self, machine: Machine) -> list[int]:
        """The first ranks of machines that may be this one, if each has consecutive ranks."""
        return sorted(
            {
                rank - local
                for local, ranks in self._by_local.items()
                for where, there in ranks.items()
                if where.may_be(machine)
                for rank in there
            }
        )


def _of(known: Mapping[Machine, int], machine: Machine) -> int | None:
    """What is known for this machine, else the only value among machines that may be it."""
    if machine in known:
        return known[machine]
    found = {rank for where, rank in known.items() if where.may_be(machine)}
    return found.pop() if len(found) == 1 else None
