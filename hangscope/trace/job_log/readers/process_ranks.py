"""Which process of which machine is which rank.

Process ids and local ranks begin anew on every machine, and containers give the same small ids to
all of their first processes. A number that a line tells is therefore looked up together with the
machine that wrote the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hangscope.trace.job_log.lines.line import Machine


class Process(NamedTuple):
    """A process id, and the machine on which it means something."""

    pid: int
    machine: Machine


class Processes:
    """What is known of the processes that write into one log."""

    def __init__(self) -> None:
        self._by_pid: dict[int, dict[Machine, int]] = {}
        self._by_local: dict[int, dict[Machine, set[int]]] = {}
        """On each machine one, but for machines that no prefix tells apart."""
        self._listed: dict[Machine, Mapping[int, int]] = {}
        self._counted: dict[Machine, Mapping[int, int]] = {}
        self._wrote: dict[Process, int] = {}
        self._shared: set[Process] = set()
        """Processes that hand on the lines of several ranks, as a launcher of a node does."""
        self.machines: set[Machine] = set()
        self.nodes = 1
        """How many the job has, as far as a launcher says so."""
        self.is_one_node = False
        """Whether a launcher says that it has no other."""

    def of_next_attempt(self) -> Processes:
        """What outlives a restart of the job: its nodes, and the commands that started it."""
        kept = Processes()
        kept.machines, kept.nodes, kept._counted = self.machines, self.nodes, self._counted
        kept.is_one_node = self.is_one_node
        return kept

    def wrote(self, rank: int, machine: Machine, pid: int | None, local: int | None) -> None:
        """A line of this rank came from this process. Who was noted first stays."""
        if local is not None:
            self._by_local.setdefault(local, {}).setdefault(machine, set()).add(rank)
        if pid is None:
            return
        process = Process(pid, machine)
        if self._wrote.setdefault(process, rank) != rank:
            self._shared.add(process)
        self._by_pid.setdefault(pid, {}).setdefault(machine, rank)

    def is_told(self, rank: int, pid: int, machine: Machine) -> None:
        """A table or a communicator says whose the process is: the newest one counts."""
        self._by_pid.setdefault(pid, {})[machine] = rank

    def forget(self, rank: int) -> None:
        """What was told of a rank's process is of another rank."""
        for pid, machines in self._by_pid.items():
            for machine in [m for m, known in machines.items() if known == rank]:
                if self._wrote.get(Process(pid, machine)) != rank:
                    del machines[machine]

    def are_listed(self, machine: Machine, ranks: Mapping[int, int]) -> None:
        """The launcher of a machine lists the ranks of its local ranks."""
        _note(self._listed, machine, ranks)

    def are_counted(self, machine: Machine, ranks: Mapping[int, int]) -> None:
        """They follow from the number of a node and of the processes of each."""
        _note(self._counted, machine, ranks)

    def of_pid(self, pid: int | None, machine: Machine) -> int | None:
        """The rank of a process; None where it is not known, or may be that of several."""
        known = self._by_pid.get(pid) if pid is not None else None
        if pid is None or not known or Process(pid, machine) in self._shared:
            return None
        return _of(known, machine)

    def of_local(self, local: int, machine: Machine) -> int | None:
        """The rank of a local rank that was seen or is stated; None where several may be it."""
        rank = self.stated(local, machine)
        if rank is not None:
            return rank
        seen = self._by_local.get(local, {})
        ranks = seen.get(machine) or {r for m, rs in seen.items() if m.may_be(machine) for r in rs}
        return next(iter(ranks)) if len(ranks) == 1 else None

    def stated(self, local: int, machine: Machine) -> int | None:
        """The rank that a launcher has said a local rank to be."""
        for said in (self._listed, self._counted):
            rank = _of({m: ranks[local] for m, ranks in said.items() if local in ranks}, machine)
            if rank is not None:
                return rank
        return None

    def is_counted(self, rank: int) -> bool:
        """Whether it is only counted, and by nobody listed, which local rank it is."""
        listed = any(rank in ranks.values() for ranks in self._listed.values())
        return not listed and any(rank in ranks.values() for ranks in self._counted.values())

    def first_ranks(self, machine: Machine) -> list[int]:
        """Of machines that may be this one, if the ranks of each follow one another."""
        return sorted(
            {
                rank - local
                for local, ranks in self._by_local.items()
                for where, there in ranks.items()
                if where.may_be(machine)
                for rank in there
            }
        )


def _note(
    said: dict[Machine, Mapping[int, int]], machine: Machine, ranks: Mapping[int, int]
) -> None:
    if said.setdefault(machine, ranks) != ranks:  # several launchers that no prefix tells apart
        said[machine] = {}


def _of(known: Mapping[Machine, int], machine: Machine) -> int | None:
    """What is known of a machine itself, else the only thing known of those that may be it."""
    if machine in known:
        return known[machine]
    found = {rank for where, rank in known.items() if where.may_be(machine)}
    return found.pop() if len(found) == 1 else None
