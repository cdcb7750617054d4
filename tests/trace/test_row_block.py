"""Rings read into one block of memory give the same trace as when read one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hangscope.ring.layout import SLOT_FORMAT, ValueKind
from hangscope.ring.reader import RingReader
from hangscope.ring.writer import LAST_RECORD_CELL, RingIdentity, RingWriter
from hangscope.trace.load import load_trace
from hangscope.trace.merging.merge import merge
from hangscope.trace.model import NONE, RECORD_DTYPE, Frame, Records, Stack
from hangscope.trace.rings.columns import Numbering
from hangscope.trace.rings.read import read_ring
from hangscope.trace.rings.values import RingValues
from hangscope.trace.row_block import RowBlock
from hangscope.trace.stack_table import StackTable


def _ring(path: Path, rank: int, count: int, *, slots: int = 16, bare: bool = False) -> None:
    identity = RingIdentity(run_id="block", rank=rank, world_size=3, host="node0", pid=1)
    ring = RingWriter(path, identity, slots)
    group = ring.add_group("0", "default_pg", [0, 1, 2], "gloo", 0, rank, observable=True)
    ring.intern(ValueKind.TEXT, b"x" * (8 * rank))  # so that ids differ from ring to ring
    signature = ring.intern(ValueKind.SIGNATURE, b'{"op": "gloo:all_reduce", "in": [[4]]}')
    frames = [ring.intern(ValueKind.FRAME, f"step\0train.py\0{n}".encode()) for n in (7, 9)]
    stacks = [ring.intern(ValueKind.STACK, np.array([f], "<u4").tobytes()) for f in frames]
    for number in range(1, count + 1):
        stack = 0 if bare else stacks[number % 2]
        SLOT_FORMAT.pack_into(
            ring.memory, ring.slot_at(number), number, 1000 + number, 0, 0, number, 0, number, 7,
            group, signature, stack, -1, -1, 5, 1000, 4, 4, 0, 0, number,
        )  # fmt: skip
        ring.cells[LAST_RECORD_CELL] = number


def _lines(trace_records: Records, stacks: object) -> list[tuple[int, int, int]]:
    return [
        (int(r["rank"]), int(r["collective_seq"]), stacks[int(r["stack"])][0].line)  # type: ignore[index]
        for r in trace_records
    ]


@pytest.mark.parametrize("counts", [(5, 5, 5), (3, 40, 1), (0, 7, 16), (20, 0, 20)])
def test_row_block_changes_nothing(tmp_path: Path, counts: tuple[int, int, int]) -> None:
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


def test_names_that_are_not_in_rank_order(tmp_path: Path) -> None:
    for name, rank in (("a", 2), ("b", 0), ("c", 1)):
        _ring(tmp_path / f"{name}.ring", rank, 4)
    trace = load_trace([tmp_path])
    assert trace.records["rank"].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_block_that_is_too_small_gives_other_memory() -> None:
    block = RowBlock(4)
    first, second = block.take(3).view(RECORD_DTYPE), block.take(3).view(RECORD_DTYPE)
    assert block.reuse([first]) is not None
    assert block.reuse([first, second]) is None


def _reused(block: RowBlock, parts: list[Records]) -> tuple[int, int]:
    """How many rows there are together, and how many of the parts lie right already."""
    found = block.reuse(parts)
    assert found is not None
    return len(found[0]), found[1]


def test_parts_are_moved_only_in_order() -> None:
    block = RowBlock(6)
    first, second = block.take(3).view(RECORD_DTYPE), block.take(3).view(RECORD_DTYPE)
    assert [_reused(block, parts) for parts in ([first, second[1:]], [first[1:], second[:2]])] == [
        (5, 1),
        (4, 0),
    ]
    assert block.reuse([second, first]) is None
    assert block.reuse([np.zeros(1, RECORD_DTYPE)]) is None


def test_absurd_count_gives_an_empty_block() -> None:
    assert RowBlock(1 << 60).reuse([RowBlock(1).take(1).view(RECORD_DTYPE)]) is None


def _translated(table: StackTable, stacks: Sequence[Stack]) -> list[int]:
    column = np.array([*range(len(stacks)), NONE], np.int32)
    table.translate(stacks, column)
    return column.tolist()


def test_table_of_known_and_pending_stacks() -> None:
    one, two = (Frame("f", "a.py", 1),), (Frame("g", "b.py", 2),)
    table = StackTable()
    assert _translated(table, (one, two, one)) == [0, 1, 0, NONE]
    assert table.finished() == (one, two)
    waiting = [two, one]
    assert _translated(table, waiting) == [2, 3, NONE]  # not known yet: not compared
    assert _translated(table, (two,)) == [1, NONE]
    assert _translated(table, waiting) == [2, 3, NONE], "stacks of many sources are taken in once"
    finished = table.finished()
    assert list(finished) == [one, two, two, one]
    assert finished[-1] == one
    assert finished[1:3] == (two, two)
    with pytest.raises(IndexError):
        finished[4]


def test_numbers_of_the_previous_ring_are_used_if_they_cover_all_ids() -> None:
    numbering = Numbering()
    first, place = numbering.of(np.array([7, 3, 7, 9], np.uint32))
    assert (first.tolist(), place.tolist()) == ([3, 7, 9], [1, 0, 1, 2])
    again, place = numbering.of(np.array([9, 9, 3], np.uint32))
    assert again is first
    assert place.tolist() == [2, 2, 0]
    for unknown in (4, 10, 1 << 31):  # between those known, above them, invented
        other, place = numbering.of(np.array([unknown, 3], np.uint32))
        assert other.tolist() == [3, unknown]
        assert place.tolist() == [1, 0]
    assert numbering.of(np.zeros(0, np.uint32))[1].tolist() == []


def _values(path: Path, texts: Sequence[bytes]) -> tuple[bytes, dict[str, int]]:
    """A value area with a signature and a stack of one frame, behind some texts."""
    ring = RingWriter(path, RingIdentity(run_id="values", rank=0, world_size=1), 8)
    for text in texts:
        ring.intern(ValueKind.TEXT, text)
    op, line = texts[-1].decode(), len(texts[-1])
    frame = ring.intern(ValueKind.FRAME, f"step\0train.py\0{line}".encode())
    ids = {
        "signature": ring.intern(ValueKind.SIGNATURE, f'{{"op": "gloo:{op}"}}'.encode()),
        "stack": ring.intern(ValueKind.STACK, np.array([frame], "<u4").tobytes()),
    }
    return RingReader(path).values(), ids


def test_rings_with_equal_values_share_them(tmp_path: Path) -> None:
    found = []
    for name, texts in {
        "a": [b"rank 0", b"all_reduce"],
        "same": [b"rank 1", b"all_reduce"],
        "other": [b"rank 2", b"all_gather"],  # at the same places
        "moved": [b"rank 3 and more", b"all_reduce"],
    }.items():
        area, ids = _values(tmp_path / name, texts)
        values = RingValues(area)
        stacks = values.stacks(np.array([ids["stack"]]))
        found.append((values.signatures(np.array([ids["signature"]])), stacks[0]))
    assert [signatures[0].op for signatures, _ in found] == [
        "all_reduce",
        "all_reduce",
        "all_gather",
        "all_reduce",
    ]
    assert [stack[0].line for _, stack in found] == [10] * 4
    assert found[0][0] is found[1][0] is found[3][0]
    assert all(stack is found[0][1] for _, stack in found)


def test_rings_with_and_without_stacks_in_one_folder(tmp_path: Path) -> None:
    for rank, bare in enumerate((True, False, True)):
        _ring(tmp_path / f"rank_{rank}.ring", rank, 6, bare=bare)
    trace = load_trace([tmp_path])
    has_none = (trace.records["stack"] == NONE).reshape(3, 6)
    assert has_none.all(axis=1).tolist() == [True, False, True]
    assert not has_none[1].any()
