"""The program of a virtual job: groups, operations and one program per rank."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class SimGroup:
    """A process group; ``ranks`` are global, in group order."""

    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """One line of a program.

    ``kind``: ``coll``, ``send``, ``recv``, ``batch`` (sends and receives issued as one), ``work``
    (host time), ``wait`` (the host waits for all it has issued), ``stop`` (never returns), ``end``
    (the process ends here).
    """

    kind: str
    group: int = -1
    name: str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    dtype: str = "Float"
    reduce_op: str | None = None
    root: int = -1
    peer: int = -1
    is_async: bool = False
    legs: tuple[Op, ...] = ()
    seconds: float = 0.0
    site: tuple[str, str, int] = ("step", "/srv/job/train.py", 10)
    step: int = 0


@dataclass
class Job:
    """A whole virtual job before it runs."""

    world: int
    groups: list[SimGroup]
    programs: list[list[Op]]
    shape: str
    blocking: bool
    """The host waits for every synchronous operation (Gloo) instead of running ahead (NCCL)."""
    faults: dict[str, object] = field(default_factory=dict)


class Writer:
    """Writes programs: every call adds one line to each member's program."""

    def __init__(self, world: int, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.groups = [SimGroup("0", "default_pg", tuple(range(world)))]
        self.programs: list[list[Op]] = [[] for _ in range(world)]
        self.step = 0

    def group(self, desc: str, ranks: list[int]) -> int:
        self.groups.append(SimGroup(str(len(self.groups)), desc, tuple(sorted(ranks))))
        return len(self.groups) - 1

    def add(self, rank: int, op: Op) -> None:
        self.programs[rank].append(replace(op, step=self.step))

    def work(self, ranks: list[int] | range, seconds: float, function: str, line: int) -> None:
        for rank in ranks:
            self.add(
                rank,
                Op(
                    "work",
                    seconds=seconds * self.rng.uniform(0.8, 1.2),
                    site=(function, "/srv/job/data.py", line),
                ),
            )

    def wait(self, ranks: list[int] | range) -> None:
        for rank in ranks:
            self.add(rank, Op("wait"))

    def coll(
        self,
        group: int,
        name: str,
        size: int,
        function: str,
        line: int,
        *,
        dtype: str = "Float",
        is_async: bool = False,
        root: int = -1,
        uneven: bool = False,
        reduce_op: str | None = None,
        members: list[int] | None = None,
    ) -> None:
        """One collective on every member, with sizes as the operation requires."""
        ranks = self.groups[group].ranks
        count = len(ranks)
        for rank in members if members is not None else ranks:
            sizes_in: tuple[tuple[int, ...], ...] = ((size,),)
            sizes_out = sizes_in
            if name == "_all_gather_base":
                sizes_out = ((size * count,),)
            elif name == "_reduce_scatter_base":
                sizes_in = ((size * count,),)
            elif name == "all_gather":
                sizes_out = ((size,),) * count
            elif name == "gather":
                sizes_out = ((size,),) * count if rank == root else ()
            elif name == "scatter":
                sizes_in = ((size,),) * count if rank == root else ()
            elif name == "barrier":
                sizes_in = sizes_out = ((1,),)
            elif name == "all_to_all" and uneven:
                # All members send `size`; received sizes differ, with the same total.
                shift = ranks.index(rank) % 2
                if count % 2 == 0:
                    sizes_out = ((size + (7 if shift else -7),),)
            reduction = reduce_op or (
                "SUM" if name in ("all_reduce", "reduce", "_reduce_scatter_base") else None
            )
            self.add(
                rank,
                Op(
                    "coll", group, name, sizes_in, sizes_out, dtype, reduction, root,
                    is_async=is_async, site=(function, "/srv/job/train.py", line),
                ),
            )  # fmt: skip

    def send(self, group: int, src: int, dst: int, size: int, line: int, *, is_async: bool) -> None:
        self.add(src, self.half("send", group, dst, size, line, is_async=is_async))

    def recv(self, group: int, src: int, dst: int, size: int, line: int) -> None:
        self.add(dst, self.half("recv", group, src, size, line))

    @staticmethod
    def half(
        kind: str, group: int, peer: int, size: int, line: int, *, is_async: bool = False
    ) -> Op:
        return Op(
            kind, group, kind, ((size,),), ((size,),), "BFloat16", peer=peer, is_async=is_async,
            site=(f"{kind}_forward", "/srv/job/pipeline.py", line),
        )  # fmt: skip

    def batch(self, rank: int, group: int, legs: list[Op]) -> None:
        self.add(
            rank,
            Op(
                "batch", group, "coalesced", legs=tuple(legs), dtype="BFloat16",
                site=("exchange", "/srv/job/pipeline.py", 77),
            ),
        )  # fmt: skip

    def job(self, shape: str, blocking: bool) -> Job:
        return Job(self.world, self.groups, self.programs, shape, blocking)
