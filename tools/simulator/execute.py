"""Executes programs on virtual ranks: hosts issue operations, devices run them, both may get stuck.

Semantics
---------
* The host issues one operation after another. With a blocking backend it waits for each that is
  not asynchronous; otherwise it runs ahead, up to `RUN_AHEAD` unfinished operations.
* On the device an operation starts when every earlier synchronous operation of its rank and every
  earlier operation of the same group (for pairs: with the same peer and direction) has finished.
* A collective finishes when all members have started theirs, unless one ceases to pass data on;
  a send and a recv when both halves
  have. Incompatible operations never finish.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import inf, prod

from tools.simulator.program import Job, Op
from tools.simulator.relays import behind

RUN_AHEAD = 24
ISSUE_S = 0.0002


@dataclass
class Issued:
    """One operation as issued by one rank. Times in seconds, ``inf``: never."""

    rank: int
    op: Op
    created: float
    collective_seq: int
    p2p_seq: int
    op_id: int
    started: float = inf
    completed: float = inf
    leg_of: Issued | None = None
    legs: list[Issued] = field(default_factory=list)


@dataclass
class Run:
    """The result of an execution."""

    job: Job
    issued: list[list[Issued]]
    host_end: list[float]
    """Time of each rank's last action on the host."""
    at: list[Op | None]
    """The program line where each host is; None if it has reached the end."""
    blocked_on: list[Issued | None]
    died: dict[int, float]

    @property
    def hung(self) -> bool:
        """Whether some operation of a live rank never finishes."""
        return any(i.completed == inf for issued in self.issued for i in issued) or any(
            op is not None for r, op in enumerate(self.at) if r not in self.died
        )

    @property
    def somebody_waits(self) -> bool:
        """Whether a live rank waits for something."""
        return any(
            item.completed == inf
            for rank, issued in enumerate(self.issued)
            if rank not in self.died
            for item in issued
        )

    @property
    def last(self) -> float:
        """Time of the last event."""
        times = list(self.host_end)
        for issued in self.issued:
            times += [i.completed for i in issued if i.completed < inf]
        return max(times, default=0.0)


def _compatible(ops: list[Op], members: int) -> bool:
    """Whether the members' operations can complete together."""
    first = ops[0]
    for op in ops[1:]:
        if op.name != first.name or op.dtype != first.dtype or op.root != first.root:
            return False
    if first.name in ("all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base"):
        return len({sum(map(prod, op.input_sizes)) for op in ops}) == 1
    if first.name == "_reduce_scatter_base":
        return len({sum(map(prod, op.output_sizes)) for op in ops}) == 1
    if first.name == "all_to_all":
        sent = sum(sum(map(prod, op.input_sizes)) for op in ops)
        received = sum(sum(map(prod, op.output_sizes)) for op in ops)
        return sent == received or len(ops) < members
    return True


class Machine:
    """Runs one job until it ends or hangs."""

    def __init__(
        self,
        job: Job,
        rng: random.Random,
        *,
        device_stuck: set[tuple[int, int]] = frozenset(),  # type: ignore[assignment]
        network_stuck: tuple[int, int] | None = None,
        slow: dict[int, float] | None = None,
        breaks: tuple[int, int] | None = None,
    ) -> None:
        """``device_stuck``: (rank, index of issue) that never finishes on that rank;
        ``network_stuck``: (group, sequence number) that never finishes on any rank; ``slow``:
        factor on a rank's host work; ``breaks``: (rank, index of issue) of a collective in which a
        process ceases to pass data on (see `tools.simulator.relays`) and to run."""
        self.job = job
        self.rng = rng
        self.device_stuck = device_stuck
        self.network_stuck = network_stuck
        self.slow = slow or {}
        self.breaks = breaks
        world = job.world
        self.pc = [0] * world
        self.clock = [rng.uniform(0, 0.002) for _ in range(world)]
        self.issued: list[list[Issued]] = [[] for _ in range(world)]
        self.blocked: list[list[Issued]] = [[] for _ in range(world)]
        self.stopped = [False] * world
        self.died: dict[int, float] = {}
        self.coll: dict[tuple[int, int], int] = defaultdict(int)
        self.p2p: dict[tuple[int, int], int] = defaultdict(int)
        self.ops: dict[tuple[int, int], int] = defaultdict(int)
        self.waiting: dict[int, deque[Issued]] = {r: deque() for r in range(world)}
        self.serial_free = [0.0] * world
        self.places: dict[tuple[int, int], list[Issued]] = defaultdict(list)
        self.channels: dict[tuple[int, int, int], tuple[list[Issued], list[Issued]]] = defaultdict(
            lambda: ([], [])
        )

        self.any_source: dict[tuple[int, int], list[Issued]] = defaultdict(list)

    def run(self) -> Run:
        progress = True
        while progress:
            progress = False
            for rank in range(self.job.world):
                while self._host(rank):
                    progress = True
                while self._device(rank):
                    progress = True
        at: list[Op | None] = []
        for rank in range(self.job.world):
            program = self.job.programs[rank]
            at.append(program[self.pc[rank]] if self.pc[rank] < len(program) else None)
        return Run(
            self.job,
            self.issued,
            self.clock,
            at,
            [b[0] if b else None for b in self.blocked],
            self.died,
        )

    # -- the host --------------------------------------------------------------------------

    def _host(self, rank: int) -> bool:
        if self.stopped[rank]:
            return False
        if self.blocked[rank]:
            if any(i.completed == inf for i in self.blocked[rank]):
                return False
            self.clock[rank] = max(
                self.clock[rank], max(i.completed for i in self.blocked[rank]) + 1e-5
            )
            self.blocked[rank] = []
        program = self.job.programs[rank]
        if self.pc[rank] >= len(program):
            return False
        op = program[self.pc[rank]]
        if op.kind == "work":
            self.clock[rank] += op.seconds * self.slow.get(rank, 1.0)
        elif op.kind == "wait":
            pending = [i for i in self.issued[rank] if i.completed == inf and i.leg_of is None]
            done = [i.completed for i in self.issued[rank] if i.completed < inf]
            if pending:
                self.blocked[rank] = pending
                self.pc[rank] += 1
                return True
            self.clock[rank] = max(self.clock[rank], max(done, default=0.0))
        elif op.kind in ("stop", "end", "die"):
            self.stopped[rank] = True
            if op.kind == "die":
                self.died[rank] = self.clock[rank]
            return False
        else:
            unfinished = [i for i in self.issued[rank] if i.completed == inf and i.leg_of is None]
            if len(unfinished) >= RUN_AHEAD:
                self.blocked[rank] = unfinished[:1]
                return True
            self._issue(rank, op)
        self.pc[rank] += 1
        return True

    def _issue(self, rank: int, op: Op) -> None:
        self.clock[rank] += ISSUE_S * self.rng.uniform(0.5, 1.5)
        key = (rank, op.group)
        self.ops[key] += 1
        if op.kind == "coll":
            self.coll[key] += 1
        else:
            self.p2p[key] += 1
        item = Issued(rank, op, self.clock[rank], self.coll[key], self.p2p[key], self.ops[key])
        for leg in op.legs:
            item.legs.append(
                Issued(
                    rank, leg, self.clock[rank], self.coll[key], self.p2p[key], self.ops[key],
                    leg_of=item,
                )
            )  # fmt: skip
        self.issued[rank] += item.legs
        self.issued[rank].append(item)
        self.waiting[rank].append(item)
        if self.job.blocking and not op.is_async:
            self.blocked[rank] = [item]

    # -- the device ------------------------------------------------------------------------

    def _device(self, rank: int) -> bool:
        """Start what can be started; True if anything moved."""
        moved = False
        free = self.serial_free[rank]
        busy: set[tuple[int, int, str]] = set()
        for item in list(self.waiting[rank]):
            lane = (item.op.group, item.op.peer, item.op.kind)  # one channel per pair and direction
            if item.started == inf and lane not in busy and free < inf:
                start = max(item.created, free) + 1e-6
                if rank in self.died and start > self.died[rank]:
                    free = inf
                    break
                item.started = start
                moved = True
                self._arrive(item)
            if item.completed == inf:
                busy.add(lane)
                if not item.op.is_async:
                    break
            else:
                self.waiting[rank].remove(item)
                moved = True
                if not item.op.is_async:
                    free = max(free, item.completed)
                    self.serial_free[rank] = free
        return moved

    def _arrive(self, item: Issued) -> None:
        if item.op.kind == "coll":
            key = (item.op.group, item.collective_seq)
            here = self.places[key]
            here.append(item)
            members = self.job.groups[item.op.group].ranks
            if len(here) == len(members):
                self._finish(here, key, len(members))
        elif item.op.kind == "batch":
            for leg in item.legs:
                leg.started = item.started
                self._half(leg)
        else:
            self._half(item)

    def _finish(self, here: list[Issued], key: tuple[int, int], members: int) -> None:
        if key == self.network_stuck or not _compatible([i.op for i in here], members):
            return
        end = max(i.started for i in here) + self.rng.uniform(1e-4, 4e-4)
        waits = self._behind_broken(here, end)
        for item in here:
            if item.rank in waits:
                continue
            index = self.issued[item.rank].index(item)
            if (item.rank, index) in self.device_stuck:
                continue
            item.completed = end + self.rng.uniform(0, 2e-5)

    def _behind_broken(self, here: list[Issued], end: float) -> frozenset[int]:
        """The members that never end a collective because a process has ceased to pass data on."""
        if self.breaks is None:
            return frozenset()
        rank, index = self.breaks
        mine = next((item for item in here if item.rank == rank), None)
        if mine is None:
            return frozenset()
        if rank not in self.died:
            if self.issued[rank].index(mine) != index:
                return frozenset()
            self.died[rank] = end  # it may have ended its own part just before
            self.stopped[rank] = True
        elif end <= self.died[rank]:
            return frozenset()
        lost = frozenset() if self.rng.random() < 0.5 else frozenset({rank})
        return lost | behind(mine.op, self.job.groups[mine.op.group].ranks, rank, self.rng)

    def _half(self, item: Issued) -> None:
        op = item.op
        if op.kind == "recv" and op.peer < 0:
            self.any_source[op.group, item.rank].append(item)
            self._from_anybody(op.group, item.rank)
            return
        if op.kind == "send" and self.any_source[op.group, op.peer]:
            self.channels[op.group, item.rank, op.peer][0].append(item)
            self._from_anybody(op.group, op.peer)
            return
        source, target = (item.rank, op.peer) if op.kind == "send" else (op.peer, item.rank)
        sends, recvs = self.channels[op.group, source, target]
        (sends if op.kind == "send" else recvs).append(item)
        index = len(sends if op.kind == "send" else recvs) - 1
        if index >= len(sends) or index >= len(recvs):
            return
        self._matched(sends[index], recvs[index])

    def _from_anybody(self, group: int, rank: int) -> None:
        """Match receives from any source with pending sends, earliest first."""
        waiting = self.any_source[group, rank]
        while waiting:
            ready = [
                (sends[len(recvs)].started, source)
                for (g, source, target), (sends, recvs) in self.channels.items()
                if (g, target) == (group, rank) and len(sends) > len(recvs)
            ]
            if not ready:
                return
            sends, recvs = self.channels[group, min(ready)[1], rank]
            recvs.append(waiting.pop(0))
            self._matched(sends[len(recvs) - 1], recvs[-1])

    def _matched(self, a: Issued, b: Issued) -> None:
        if a.op.input_sizes != b.op.input_sizes:
            return
        end = max(a.started, b.started) + 2e-4
        for half in (a, b):
            half.completed = end
            batch = half.leg_of
            if batch is not None and all(leg.completed < inf for leg in batch.legs):
                batch.completed = max(leg.completed for leg in batch.legs)
