"""What the job scripts share: what the ring of this very process says."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch.distributed as dist


class Numbered(NamedTuple):
    """A collective as both recorders know it, with the numbers they gave it."""

    group: str
    seq: int
    op: str
    elements: int
    """Of all its inputs together."""


_NATIVE_NAMES = {
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "all_reduce",
    "all_gather_coalesced": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allreduce_coalesced": "all_reduce",
    "reduce_scatter": "all_reduce",
    "reduce_scatter_tensor_coalesced": "all_reduce",
}
"""What Gloo makes of an operation, and its recorder calls it."""
_NOT_NATIVE = ("send", "recv", "monitored_barrier")


@dataclass
class Seen:
    """The records of one block, as a reader of the ring gets them."""

    ops: list[str] = field(default_factory=list)
    """Canonical operation names, batch records and point-to-point included."""
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0))
    signatures: list = field(default_factory=list)
    stacks: list = field(default_factory=list)
    groups: list = field(default_factory=list)
    native: list[Numbered] = field(default_factory=list)
    """What torch's own recorder has noted of Gloo's collectives."""

    @property
    def sequence(self) -> list[int]:
        """Collective sequence numbers of the collectives, batch members left out."""
        from hangscope.trace.model import Flag

        skipped = int(Flag.P2P | Flag.COALESCED_MEMBER)
        return [int(row["collective_seq"]) for row in self.rows if not row["flags"] & skipped]

    def only(self, *names: str) -> list[str]:
        """The operations of these names."""
        return [op for op in self.ops if op in names]


def session():
    """This process's recording."""
    from hangscope.recording.api import current_session

    found = current_session()
    assert found is not None, "this process does not record"
    assert not found.failed, "the recorder has given up"
    return found


@contextlib.contextmanager
def recorded(*, same_numbers: bool = True) -> Iterator[Seen]:
    """Collect what a block records; then compare it with torch's own recorder, one by one, and
    every group's number with the backend's own."""
    from hangscope.trace.rings.read import read_ring

    ring = session().ring
    before = int(ring.cells[_last_record()])
    native_before = _native_record_id()
    numbers_before = _numbers()
    seen = Seen()
    yield seen
    for _ in range(20):  # the watcher may be at it just now
        session().recorder.catch_up()
        time.sleep(0.005)
        if not any(state.pending for state in session().recorder.groups.states()):
            break
    fragment = read_ring(ring.path)
    rows = fragment.records[fragment.records["record_id"] > before]
    seen.rows = rows
    seen.signatures = [fragment.signatures[row["signature"]] for row in rows]
    seen.ops = [signature.op for signature in seen.signatures]
    seen.stacks = [fragment.stacks[row["stack"]] if row["stack"] >= 0 else () for row in rows]
    seen.groups = [fragment.groups[row["group"]] for row in rows]
    seen.native = _native(native_before)
    if seen.native or native_before >= 0:  # older torch has no such recorder on Gloo
        _assert_same_records(seen)
    if same_numbers:
        _assert_same_numbers(numbers_before, seen)


def _numbers() -> dict[str, tuple[int, int]]:
    """Of every group: our collective sequence number, and the backend's own."""
    import torch.distributed.distributed_c10d as c10d

    states = session().recorder.groups.by_identity
    numbers = {}
    for group in list(c10d._world.pg_map):
        state = states.get(id(group))
        try:
            native = group._get_sequence_number_for_group()
        except RuntimeError:  # a group of several backends has no number of its own
            continue
        numbers[str(group.group_name)] = (state.collective_seq if state else 0, native)
    return numbers


def _assert_same_numbers(before: dict[str, tuple[int, int]], seen: Seen) -> None:
    """Both numbers have moved alike; Gloo's also counts sends and receives, as no other does."""
    from hangscope.trace.model import Flag

    for name, (ours, native) in _numbers().items():
        ours_before, native_before = before.get(name, (0, 0))
        pairs = sum(
            bool(row["flags"] & int(Flag.P2P)) and not row["flags"] & int(Flag.COALESCED_BATCH)
            for row, group in zip(seen.rows, seen.groups, strict=True)
            if group.name == name
        )
        assert ours - ours_before + pairs == native - native_before, (
            f"group {name}: {ours_before} to {ours} and {pairs} pairs here, "
            f"{native_before} to {native} in the backend"
        )


def frames_of(stack) -> list[str]:  # type: ignore[no-untyped-def]
    """Function names of a stack, innermost first."""
    return [frame.name for frame in stack]


def _last_record() -> int:
    from hangscope.ring.writer import LAST_RECORD_CELL

    return LAST_RECORD_CELL


def _dump_native() -> list[dict]:
    import pickle

    from torch._C._distributed_c10d import _dump_fr_trace

    return pickle.loads(_dump_fr_trace()).get("entries", [])


def _native_record_id() -> int:
    return max((entry["record_id"] for entry in _dump_native()), default=-1)


def _native(since: int) -> list[Numbered]:
    entries = [entry for entry in _dump_native() if entry["record_id"] > since]
    return [
        Numbered(
            entry["process_group"][0],
            entry["collective_seq_id"],
            entry["profiling_name"].partition(":")[2].removeprefix("sparse_"),
            sum(map(math.prod, entry["input_sizes"])),
        )
        for entry in entries
        if entry["profiling_name"].startswith("gloo:")
    ]


def _assert_same_records(seen: Seen) -> None:
    """Each of Gloo's collectives stands in both recorders, under the same number."""
    ours = [
        numbered
        for row, signature, group in zip(seen.rows, seen.signatures, seen.groups, strict=True)
        if signature.backend == "gloo" and signature.op not in _NOT_NATIVE
        for numbered in _as_native(row, signature, group)
    ]
    # Threads may come to the one recorder in another order than to the other.
    assert sorted(ours) == sorted(seen.native), f"{sorted(ours)}\n{sorted(seen.native)}"


def _as_native(row, signature, group) -> Iterator[Numbered]:  # type: ignore[no-untyped-def]
    """What torch's own recorder notes of an operation: of one that Gloo makes of several, each."""
    parts = {
        "reduce_scatter": len(group.ranks),
        "reduce_scatter_tensor_coalesced": len(signature.input_sizes),
    }.get(signature.op, 1)
    elements = [math.prod(size) for size in signature.input_sizes]
    for part in range(parts):
        yield Numbered(
            group.name,
            int(row["collective_seq"]) - parts + 1 + part,
            _NATIVE_NAMES.get(signature.op, signature.op),
            sum(elements) if parts == 1 else elements[part],
        )


def peer() -> int:
    """The other rank of two."""
    return 1 - dist.get_rank()
