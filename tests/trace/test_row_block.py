"""Rings read into one block of memory give the trace that they give one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hangscope.ring.layout import SLOT_FORMAT, ValueKind
from hangscope.ring.writer import LAST_RECORD_CELL, RingIdentity, RingWriter
from hangscope.trace.from_ring import read_ring
from hangscope.trace.load import load_trace
from hangscope.trace.merge import merge
from hangscope.trace.model import NONE, RECORD_DTYPE, Frame, Records
from hangscope.trace.row_block import RowBlock, same_place
from hangscope.trace.stack_table import StackTable


def _ring(path: Path, rank: int, count: int, *, slots: int = 16) -> None:
    identity = RingIdentity(run_id="block", rank=rank, world_size=3, host="node0", pid=1)
    ring = RingWriter(path, identity, slots)
    group = ring.add_group("0", "default_pg", [0, 1, 2], "gloo", 0, rank, observable=True)
    ring.intern(ValueKind.TEXT, b"x" * (8 * rank))  # so that ids differ from ring to ring
    signature = ring.intern(ValueKind.SIGNATURE, b'{"op": "gloo:all_reduce", "in": [[4]]}')
    frames = [ring.intern(ValueKind.FRAME, f"step\0train.py\0{n}".encode()) for n in (7, 9)]
    stacks = [ring.intern(ValueKind.STACK, np.array([f], "<u4").tobytes()) for f in frames]
    for number in range(1, count + 1):
        SLOT_FORMAT.pack_into(
            ring.memory, ring.slot_at(number), number, 1000 + number, 0, 0, number, 0, number, 7,
            group, signature, stacks[number % 2], -1, -1, 5, 1000, 4, 4, 0, 0, number,
        )  # fmt: skip
        ring.set_cell(LAST_RECORD_CELL, number)


def _lines(trace_records: Records, stacks: object) -> list[tuple[int, int, int]]:
    return [
        (int(r["rank"]), int(r["collective_seq"]), stacks[int(r["stack"])][0].line)  # type: ignore[index]
        for r in trace_records
    ]


@pytest.mark.parametrize("counts", [(5, 5, 5), (3, 40, 1), (0, 7, 16), (20, 0, 20)])
def test_a_block_changes_nothing(tmp_path: Path, counts: tuple[int, int, int]) -> None:
    for rank, count in enumerate(counts):
        _ring(tmp_path / f"rank_{rank}.ring", rank, count)
    together = load_trace([tmp_path])
    alone = merge(read_ring(tmp_path / f"rank_{rank}.ring") for rank in range(3))
    assert together.records.tolist() == alone.records.tolist()
    assert _lines(together.records, together.stacks) == _lines(alone.records, alone.stacks)
    expected = [
        (rank, seq, (7, 9)[seq % 2])
        for rank, count in enumerate(counts)
        for seq in range(max(1, count - 15), count + 1)
    ]
    assert _lines(together.records, together.stacks) == expected


def test_names_that_are_not_in_the_order_of_ranks(tmp_path: Path) -> None:
    for name, rank in (("a", 2), ("b", 0), ("c", 1)):
        _ring(tmp_path / f"{name}.ring", rank, 4)
    trace = load_trace([tmp_path])
    assert trace.records["rank"].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_a_block_that_is_too_small_gives_other_memory() -> None:
    block = RowBlock(4)
    first, second = block.take(3).view(RECORD_DTYPE), block.take(3).view(RECORD_DTYPE)
    assert block.reuse([first]) is not None
    assert block.reuse([first, second]) is None


def test_parts_are_moved_up_only_in_order() -> None:
    block = RowBlock(6)
    first, second = block.take(3).view(RECORD_DTYPE), block.take(3).view(RECORD_DTYPE)
    whole = block.reuse([first[1:], second[:2]])
    assert whole is not None
    assert len(whole) == 4
    assert same_place(whole, first)
    assert block.reuse([second, first]) is None
    assert block.reuse([np.zeros(1, RECORD_DTYPE)]) is None


def test_an_absurd_claim_gives_an_empty_block() -> None:
    assert RowBlock(1 << 60).reuse([RowBlock(1).take(1).view(RECORD_DTYPE)]) is None


def test_a_table_of_known_and_waiting_stacks() -> None:
    one, two = (Frame("f", "a.py", 1),), (Frame("g", "b.py", 2),)
    table = StackTable()
    assert table.add((one, two, one)).tolist() == [0, 1, 0, NONE]
    assert table.finished() == (one, two)
    assert table.add([two, one]).tolist() == [2, 3, NONE]  # not known yet: not compared
    assert table.add((two,)).tolist() == [1, NONE]
    finished = table.finished()
    assert list(finished) == [one, two, two, one]
    assert finished[-1] == one
    assert finished[1:3] == (two, two)
    with pytest.raises(IndexError):
        finished[4]
