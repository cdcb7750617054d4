"""Rings as running ranks would write them, without the ranks, for tests and benchmarks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from hangscope.ring import layout
from hangscope.ring.layout import SlotFlag, ValueKind
from hangscope.ring.writer import LAST_RECORD_CELL, RingIdentity, RingWriter

THREAD = 77
_ENQUEUED = layout.group_offset("enqueued") // 8
_COMPLETED = layout.group_offset("completed") // 8
_P2P = layout.group_offset("p2p_enqueued") // 8
_ENQUEUED_NS = layout.group_offset("enqueued_ns") // 8


class RingRank:
    """One rank's ring, into which tests record operations.

    Parameters
    ----------
    folder, rank, world:
        Directory, rank and world size.
    slots:
        Records the ring keeps.
    pid, start_ticks, boot_id, pid_namespace:
        The process it claims to be.
    timeout_s:
        ``HANGSCOPE_TIMEOUT``.
    run_id, seal, local_world_size:
        The run it claims to be of, and its seal; how many ranks its node has.
    backend:
        Of its groups. Only on Gloo the ends of operations are observed.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world: int,
        *,
        slots: int = 64,
        pid: int = 0,
        start_ticks: int = 0,
        boot_id: str = "",
        pid_namespace: int = 0,
        values_bytes: int = 1 << 16,
        timeout_s: float = 120.0,
        run_id: str = "live",
        seal: str = "",
        local_world_size: int = 1,
        backend: str = "gloo",
    ) -> None:
        self.backend = backend
        identity = RingIdentity(
            run_id=run_id,
            seal=seal,
            local_world_size=local_world_size,
            rank=rank,
            world_size=world,
            host="node0",
            pid=pid,
            start_ticks=start_ticks,
            boot_id=boot_id,
            pid_namespace=pid_namespace,
            timeout_s=timeout_s,
        )
        self.ring = RingWriter(
            folder / f"rank_{rank}.ring",
            identity,
            slots,
            group_count=64,
            values_bytes=values_bytes,
        )
        self.ring.put_i8("main_thread", THREAD)
        self.ring.put_u4("initialized", 1)
        self.rank = rank
        self.last = 0
        self.seqs: dict[int, list[int]] = {}
        """Collective and point-to-point sequence number of each group."""
        self.open: dict[int, tuple[int, int]] = {}
        """Unfinished records: (group, sequence number)."""
        self.ids: dict[tuple[str, int], tuple[int, int]] = {}

    def join(self, name: str, desc: str, ranks: Sequence[int]) -> int:
        """Add a group; returns its index."""
        index = list(ranks).index(self.rank)
        seen = self.backend == "gloo"
        group = self.ring.add_group(name, desc, ranks, self.backend, 0, index, observable=seen)
        self.seqs[group] = [0, 0]
        return group

    def _interned(self, op: str, line: int, sizes: object) -> tuple[int, int]:
        key = (f"{op}{sizes}", line)
        if key not in self.ids:
            fields = {
                "op": f"{self.backend}:{op}",
                "in": sizes,
                "out": sizes,
                "in_dtypes": ["Float"],
            }
            if sizes is None:
                fields = {"op": f"{self.backend}:{op}"}
            frames = [
                self.ring.intern(ValueKind.FRAME, f"{name}\0{file}\0{at}".encode())
                for name, file, at in (
                    ("all_reduce", "/lib/python3/site-packages/torch/distributed/c10d.py", 7),
                    ("step", "/work/train.py", line),
                    ("<module>", "/work/train.py", 3),
                )
            ]
            packed = b"".join(frame.to_bytes(4, "little") for frame in frames)
            stack = self.ring.intern(ValueKind.STACK, packed)
            signature = self.ring.intern(ValueKind.SIGNATURE, json.dumps(fields).encode())
            self.ids[key] = signature, stack
        return self.ids[key]

    def issue(
        self,
        group: int,
        op: str = "all_reduce",
        *,
        line: int = 10,
        sizes: object = ((64, 128),),
        peer: int = -1,
        flags: int = 0,
        signed: bool = True,
        publish: bool = True,
    ) -> int:
        """Record an operation that has begun; returns its record id."""
        signature, stack = self._interned(op, line, sizes)
        seqs, now = self.seqs[group], time.time_ns()
        pair = peer >= 0
        seqs[pair] += 1
        self.last += 1
        if pair:
            flags |= SlotFlag.P2P
        layout.SLOT_FORMAT.pack_into(
            self.ring.memory, self.ring.slot_at(self.last), self.last, now, 0, 0, seqs[0], seqs[1],
            self.last, 0, group, signature if signed else 0, stack, peer, -1, THREAD, 60_000, 8192,
            8192, 0, flags, self.last,
        )  # fmt: skip
        if publish:
            self.ring.cells[LAST_RECORD_CELL] = self.last
        cells = self.ring.group_cells(group)
        self.ring.cells[cells + (_P2P if pair else _ENQUEUED)] = seqs[pair]
        self.ring.cells[cells + _ENQUEUED_NS] = now
        if not flags & SlotFlag.UNOBSERVED:
            self.open[self.last] = group, 0 if pair else seqs[0]
        if not signed:
            self.unsigned = self.last, signature
        return self.last

    def finish(self, record: int) -> None:
        """Record that an operation is over."""
        group, seq = self.open.pop(record)
        flags = int(SlotFlag.RETIRED) | (0 if seq else int(SlotFlag.P2P))
        self.ring.set_record(record, state=2, flags=flags, completed_ns=time.time_ns())
        if seq:
            self.ring.cells[self.ring.group_cells(group) + _COMPLETED] = seq

    def sample(self, line: int) -> None:
        """Publish a stack of the main thread in its unfinished operation, and a heartbeat."""
        inside = "F 7\0all_reduce\0/lib/python3/site-packages/torch/distributed/c10d.py\n"
        frames = f"F {line}\0step\0/work/train.py\nF 3\0<module>\0/work/train.py"
        frames = inside + frames if self.open else frames
        self.ring.write_sample(f"T main {THREAD} MainThread\n{frames}".encode())
        self.ring.beat()
