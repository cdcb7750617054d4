"""What the job scripts share: what the ring of this very process says."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch.distributed as dist


@dataclass
class Seen:
    """The records of one block, as a reader of the ring gets them."""

    ops: list[str] = field(default_factory=list)
    """Canonical operation names, batch records and point-to-point included."""
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0))
    signatures: list = field(default_factory=list)
    stacks: list = field(default_factory=list)
    groups: list = field(default_factory=list)
    native: list[tuple[str, int]] = field(default_factory=list)
    """(name, collective sequence number) of torch's own recorder."""

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
    """Collect what a block records; then compare every group's number with the backend's own."""
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


def _native(since: int) -> list[tuple[str, int]]:
    return [
        (entry["profiling_name"].partition(":")[2], entry["collective_seq_id"])
        for entry in _dump_native()
        if entry["record_id"] > since
    ]


def peer() -> int:
    """The other rank of two."""
    return 1 - dist.get_rank()
